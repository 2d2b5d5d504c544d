import com.alibaba.fastjson.JSONObject;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Orderly consumers. Each message becomes an event when its handler ends, with the times at which
 * it began and ended; its property `slow` says how long that takes (ms), `fail` how many tries do.
 */
final class Ordering {
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new ConcurrentHashMap<>();

    private Ordering() {
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("ordered", Ordering::start);
        commands.put("closeOrdered", given -> {
            CONSUMERS.remove(given.getString("name")).shutdown();
            return null;
        });
    }

    static int number(MessageExt message, String property) {
        String text = message.getUserProperty(property);
        return text == null ? 0 : Integer.parseInt(text);
    }

    private static Object start(JSONObject given) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(given.getString("group"));
        Driver.configure(consumer, given);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(8);
        consumer.setConsumeThreadMax(8);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        if (given.containsKey("maxReconsume")) {
            consumer.setMaxReconsumeTimes(given.getIntValue("maxReconsume"));
        }
        JSONObject topics = given.getJSONObject("topics");
        for (String topic : topics.keySet()) {
            consumer.subscribe(topic, topics.getString(topic));
        }
        String name = given.getString("name");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                long begun = System.currentTimeMillis();
                boolean fails = message.getReconsumeTimes() < number(message, "fail");
                try {
                    Thread.sleep(number(message, "slow"));
                    JSONObject shown = Driver.show(message);
                    shown.put("begun", begun);
                    shown.put("ended", System.currentTimeMillis());
                    shown.put("failed", fails);
                    Driver.emit(new JSONObject(true).fluentPut("event", "message")
                        .fluentPut("name", name).fluentPut("message", shown));
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
                if (fails) {
                    context.setSuspendCurrentQueueTimeMillis(100);
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        CONSUMERS.put(name, consumer);
        return consumer.buildMQClientId();
    }
}
