package shaketable;

import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Set;

/**
 * Consumes by DefaultLitePullConsumer until COUNT different bodies came: NAMESRV TOPIC GROUP COUNT
 * SECONDS SUBSCRIPTION. A line for each message: "got BODY QUEUE OFFSET".
 */
public final class LitePull {
    public static void main(String[] args) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setPollNameServerInterval(2000);
        consumer.setHeartbeatBrokerInterval(2000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], args[5]);
        consumer.setAutoCommit(false);
        consumer.start();
        int count = Integer.parseInt(args[3]);
        long end = System.nanoTime() + Long.parseLong(args[4]) * 1_000_000_000L;
        Set<String> seen = new HashSet<>();
        while (seen.size() < count && System.nanoTime() < end) {
            for (MessageExt message : consumer.poll(1000)) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                seen.add(body);
                System.out.println("got " + body + " " + message.getQueueId() + " " + message.getQueueOffset());
            }
            consumer.commitSync();
        }
        consumer.shutdown();
        System.out.println(seen.size() >= count ? "done" : "late");
        System.exit(seen.size() >= count ? 0 : 1);
    }
}
