import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;

/** Lite pull consumers, and the old pull consumer that hands out raw pulls. */
@SuppressWarnings("deprecation")
final class Pulling {
    private static final Map<String, DefaultLitePullConsumer> LITE = new ConcurrentHashMap<>();
    private static final Map<String, DefaultMQPullConsumer> OLD = new ConcurrentHashMap<>();

    private Pulling() {
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("lite", Pulling::startLite);
        commands.put("closeLite", given -> {
            LITE.remove(given.getString("name")).shutdown();
            return null;
        });
        commands.put("poll", given ->
            Driver.showAll(lite(given).poll(given.getLongValue("timeout"))));
        commands.put("liteQueues", given ->
            Driver.showQueues(lite(given).fetchMessageQueues(given.getString("topic"))));
        commands.put("assign", given -> {
            List<MessageQueue> queues = new ArrayList<>();
            JSONArray wanted = given.getJSONArray("queues");
            for (int i = 0; i < wanted.size(); i++) {
                queues.add(Driver.queue(wanted.getJSONObject(i)));
            }
            lite(given).assign(queues);
            return null;
        });
        commands.put("seek", given -> {
            MessageQueue queue = Driver.queue(given.getJSONObject("queue"));
            switch (given.getString("to")) {
                case "begin":
                    lite(given).seekToBegin(queue);
                    break;
                case "end":
                    lite(given).seekToEnd(queue);
                    break;
                default:
                    lite(given).seek(queue, given.getLongValue("to"));
            }
            return null;
        });
        commands.put("commit", given -> {
            lite(given).commitSync();
            return null;
        });
        commands.put("committed", given ->
            lite(given).committed(Driver.queue(given.getJSONObject("queue"))));
        commands.put("pause", given -> {
            lite(given).pause(Collections.singletonList(
                Driver.queue(given.getJSONObject("queue"))));
            return null;
        });
        commands.put("resume", given -> {
            lite(given).resume(Collections.singletonList(
                Driver.queue(given.getJSONObject("queue"))));
            return null;
        });
        commands.put("liteTime", given -> lite(given).offsetForTimestamp(
            Driver.queue(given.getJSONObject("queue")), given.getLongValue("time")));
        commands.put("old", Pulling::startOld);
        commands.put("closeOld", given -> {
            OLD.remove(given.getString("name")).shutdown();
            return null;
        });
        commands.put("oldQueues", given ->
            Driver.showQueues(old(given).fetchSubscribeMessageQueues(given.getString("topic"))));
        commands.put("pull", Pulling::pull);
        commands.put("storeOffset", given -> {
            MessageQueue queue = Driver.queue(given.getJSONObject("queue"));
            old(given).updateConsumeOffset(queue, given.getLongValue("queueOffset"));
            old(given).getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
            return null;
        });
        commands.put("storedOffset", given ->
            old(given).fetchConsumeOffset(Driver.queue(given.getJSONObject("queue")), true));
    }

    private static DefaultLitePullConsumer lite(JSONObject given) {
        return LITE.get(given.getString("name"));
    }

    private static DefaultMQPullConsumer old(JSONObject given) {
        return OLD.get(given.getString("name"));
    }

    private static Object startLite(JSONObject given) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(given.getString("group"));
        Driver.configure(consumer, given);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(given.getBooleanValue("autoCommit"));
        JSONObject topics = given.getJSONObject("topics");
        if (topics != null) {
            for (String topic : topics.keySet()) {
                consumer.subscribe(topic, topics.getString(topic));
            }
        }
        consumer.start();
        LITE.put(given.getString("name"), consumer);
        return consumer.buildMQClientId();
    }

    private static Object startOld(JSONObject given) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(given.getString("group"));
        Driver.configure(consumer, given);
        consumer.start();
        OLD.put(given.getString("name"), consumer);
        return consumer.buildMQClientId();
    }

    private static Object pull(JSONObject given) throws Exception {
        MessageQueue queue = Driver.queue(given.getJSONObject("queue"));
        String expression = given.getString("expression");
        long queueOffset = given.getLongValue("queueOffset");
        int max = given.getIntValue("max");
        PullResult result = given.getBooleanValue("block")
            ? old(given).pullBlockIfNotFound(queue, expression, queueOffset, max)
            : old(given).pull(queue, expression, queueOffset, max);
        return new JSONObject(true)
            .fluentPut("status", result.getPullStatus().name())
            .fluentPut("next", result.getNextBeginOffset())
            .fluentPut("min", result.getMinOffset())
            .fluentPut("max", result.getMaxOffset())
            .fluentPut("messages", Driver.showAll(result.getMsgFoundList()));
    }
}
