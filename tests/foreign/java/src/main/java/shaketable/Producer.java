package shaketable;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

import java.nio.charset.StandardCharsets;

/**
 * Sends numbered messages one after the other: NAMESRV TOPIC GROUP FIRST COUNT SECONDS.
 *
 * A line for each: "ok NUMBER QUEUE OFFSET MSGID" or "unknown NUMBER REASON"; a number whose
 * outcome is unknown is sent again until it is acknowledged, so it may be stored twice.
 */
public final class Producer {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args[2]);
        producer.setNamesrvAddr(args[0]);
        producer.setPollNameServerInterval(2000);
        producer.setHeartbeatBrokerInterval(2000);
        producer.setSendMsgTimeout(3000);
        // Its own retries send again what may be stored: then nobody could say what is there twice.
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        int first = Integer.parseInt(args[3]);
        int count = Integer.parseInt(args[4]);
        long end = System.nanoTime() + Long.parseLong(args[5]) * 1_000_000_000L;
        int sent = 0;
        while (sent < count && System.nanoTime() < end) {
            int number = first + sent;
            String body = Integer.toString(number);
            Message message = new Message(args[1], "even odd".split(" ")[number % 2], "key" + body,
                body.getBytes(StandardCharsets.UTF_8));
            try {
                SendResult result = producer.send(message);
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    System.out.println("ok " + number + " " + result.getMessageQueue().getQueueId()
                        + " " + result.getQueueOffset() + " " + result.getOffsetMsgId());
                    sent++;
                } else {
                    System.out.println("unknown " + number + " " + result.getSendStatus());
                }
            } catch (Exception error) {
                System.out.println("unknown " + number + " " + oneLine(error));
                Thread.sleep(100);
            }
        }
        producer.shutdown();
        System.out.println(sent == count ? "done" : "late");
        System.exit(sent == count ? 0 : 1);
    }

    static String oneLine(Throwable error) {
        String text = error.getClass().getSimpleName() + " " + error.getMessage();
        return text.replaceAll("\\s+", " ");
    }
}
