package shaketable;

import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.store.DLedgerStore;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.dledger.DLedgerCommitLog;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

import java.io.File;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/**
 * Opens stores of DLedger brokers by Apache's own code and prints what it finds there: SELF=ROOT
 * for each store, behind GROUP PEERS DATA_BYTES QUEUE_BYTES SLOTS ITEMS KEY. Changes the files.
 *
 * Lines of a store: "store SELF", "ledger BEGIN END COMMITTED", "entry INDEX TERM POSITION SIZE",
 * "unit TOPIC QUEUE OFFSET POSITION SIZE TAGSCODE", "message TOPIC QUEUE OFFSET POSITION ID DIGEST
 * TAGS TAGSHASH", "keyed TOPIC DIGEST" for each message with the key, in the end "done".
 */
public final class StoreReader {
    public static void main(String[] args) {
        try {
            showStores(args);
        } catch (Throwable error) { // threads of the stores would go on
            error.printStackTrace(System.out);
            System.exit(1);
        }
        System.out.println("done");
        System.exit(0);
    }

    private static void showStores(String[] args) throws Exception {
        for (int at = 7; at < args.length; at++) {
            String[] parts = args[at].split("=", 2);
            System.out.println("store " + parts[0]);
            DefaultMessageStore store = open(args, parts[0], parts[1]);
            if (!store.load()) {
                throw new IllegalStateException("Apache's store does not load " + parts[1]);
            }
            showEntries(((DLedgerCommitLog) store.getCommitLog()).getdLedgerServer());
            showQueues(store, args[6]);
        }
    }

    private static DefaultMessageStore open(String[] args, String self, String root) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setEnableDLegerCommitLog(true);
        config.setdLegerGroup(args[0]);
        config.setdLegerPeers(args[1]);
        config.setdLegerSelfId(self);
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[2]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[3]));
        config.setMaxHashSlotNum(Integer.parseInt(args[4]));
        config.setMaxIndexNum(Integer.parseInt(args[5]));
        config.setTimerWheelEnable(false);
        config.setDuplicationEnable(false);
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("shaketable", false),
            (topic, queue, offset, tags, time, bits, properties) -> { }, new BrokerConfig(),
            new ConcurrentHashMap<>());
        // It shows messages only when started; then it would vote and write as well.
        Field isShutDown = DefaultMessageStore.class.getDeclaredField("shutdown");
        isShutDown.setAccessible(true);
        isShutDown.set(store, false);
        return store;
    }

    private static void showEntries(DLedgerServer server) {
        DLedgerStore ledger = server.getdLedgerStore();
        long begin = ledger.getLedgerBeginIndex();
        long end = ledger.getLedgerEndIndex();
        System.out.println("ledger " + begin + " " + end + " " + ledger.getCommittedIndex());
        for (long index = Math.max(begin, 0); index <= end; index++) {
            DLedgerEntry entry = ledger.get(index);
            System.out.println("entry " + entry.getIndex() + " " + entry.getTerm() + " " + entry.getPos()
                + " " + entry.getSize());
        }
    }

    private static void showQueues(DefaultMessageStore store, String key) throws Exception {
        for (Map.Entry<String, ConcurrentMap<Integer, ConsumeQueueInterface>> topic
            : store.getConsumeQueueTable().entrySet()) {
            for (ConsumeQueueInterface queue : topic.getValue().values()) {
                showUnits(queue);
                showMessages(store, queue);
            }
            showKeyed(store, topic.getKey(), key);
        }
    }

    private static void showUnits(ConsumeQueueInterface queue) {
        long offset = queue.getMinOffsetInQueue();
        while (offset < queue.getMaxOffsetInQueue()) {
            ReferredIterator<CqUnit> units = queue.iterateFrom(offset); // to the end of that file
            for (; units.hasNext(); offset++) {
                CqUnit unit = units.next();
                System.out.println("unit " + place(queue, unit.getQueueOffset()) + " " + unit.getPos() + " "
                    + unit.getSize() + " " + unit.getTagsCode());
            }
            units.release();
        }
    }

    private static void showMessages(DefaultMessageStore store, ConsumeQueueInterface queue) throws Exception {
        long offset = queue.getMinOffsetInQueue();
        while (offset < queue.getMaxOffsetInQueue()) {
            GetMessageResult found = store.getMessage("reader", queue.getTopic(), queue.getQueueId(), offset,
                32, null);
            if (found.getMessageBufferList().isEmpty()) {
                System.out.println("none " + place(queue, offset) + " " + found.getStatus());
                return;
            }
            for (ByteBuffer buffer : found.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(buffer, true, true, false, false, true);
                System.out.println("message " + message.getTopic() + " " + message.getQueueId() + " "
                    + message.getQueueOffset() + " " + message.getCommitLogOffset() + " " + message.getMsgId()
                    + " " + digest(message.getBody()) + " " + message.getTags()
                    + " " + (message.getTags() == null ? 0 : message.getTags().hashCode()));
            }
            offset = found.getNextBeginOffset();
            found.release();
        }
    }

    private static void showKeyed(DefaultMessageStore store, String topic, String key) throws Exception {
        QueryMessageResult found = store.queryMessage(topic, key, 64, 0, Long.MAX_VALUE);
        for (ByteBuffer buffer : found.getMessageBufferList()) {
            System.out.println("keyed " + topic + " " + digest(MessageDecoder.decode(buffer).getBody()));
        }
        found.release();
    }

    private static String place(ConsumeQueueInterface queue, long offset) {
        return queue.getTopic() + " " + queue.getQueueId() + " " + offset;
    }

    private static String digest(byte[] body) throws Exception {
        StringBuilder text = new StringBuilder();
        for (byte one : MessageDigest.getInstance("MD5").digest(body)) {
            text.append(String.format("%02x", one));
        }
        return text.toString();
    }
}
