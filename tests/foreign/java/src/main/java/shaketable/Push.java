package shaketable;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Consumes by DefaultMQPushConsumer until COUNT different bodies came: NAMESRV TOPIC GROUP COUNT
 * SECONDS SUBSCRIPTION (concurrently|orderly) RETRIED. A body that is RETRIED fails once ("-":
 * none). A line for each message: "got BODY QUEUE OFFSET RECONSUMED".
 */
public final class Push {
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setPollNameServerInterval(2000);
        consumer.setHeartbeatBrokerInterval(2000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], args[5]);
        int count = Integer.parseInt(args[3]);
        long end = System.nanoTime() + Long.parseLong(args[4]) * 1_000_000_000L;
        Set<String> seen = ConcurrentHashMap.newKeySet();
        if (args[6].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                take(messages, seen, args[7]) ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                take(messages, seen, args[7]) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        while (seen.size() < count && System.nanoTime() < end) {
            Thread.sleep(50);
        }
        consumer.shutdown();
        System.out.println(seen.size() >= count ? "done" : "late");
        System.exit(seen.size() >= count ? 0 : 1);
    }

    private static synchronized boolean take(List<MessageExt> messages, Set<String> seen, String retried) {
        for (MessageExt message : messages) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            if (body.equals(retried) && message.getReconsumeTimes() == 0) {
                System.out.println("failed " + body);
                return false;
            }
            seen.add(body);
            System.out.println("got " + body + " " + message.getQueueId() + " " + message.getQueueOffset()
                + " " + message.getReconsumeTimes());
        }
        return true;
    }
}
