import com.alibaba.fastjson.JSONObject;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Push consumers: each message becomes an event, after `slow` ms; it can be told to fail. */
final class Consuming {
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new ConcurrentHashMap<>();

    private Consuming() {
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("push", Consuming::start);
        commands.put("closePush", given -> {
            CONSUMERS.remove(given.getString("name")).shutdown();
            return null;
        });
        commands.put("pushAssigned", given -> Driver.showQueues(
            CONSUMERS.get(given.getString("name")).getDefaultMQPushConsumerImpl()
                .getRebalanceImpl().getProcessQueueTable().keySet()));
    }

    private static Object start(JSONObject given) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            given.getString("group"), Driver.hook(), new AllocateMessageQueueAveragely());
        Driver.configure(consumer, given);
        consumer.setConsumeFromWhere(given.getBooleanValue("fromLast")
            ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (given.getBooleanValue("broadcasting")) {
            setBroadcasting(consumer);
        }
        consumer.setConsumeThreadMin(1); // one at a time, so that order within a queue shows
        consumer.setConsumeThreadMax(1);
        consumer.setConsumeMessageBatchMaxSize(1);
        if (given.containsKey("maxReconsume")) {
            consumer.setMaxReconsumeTimes(given.getIntValue("maxReconsume"));
        }
        JSONObject topics = given.getJSONObject("topics");
        for (String topic : topics.keySet()) {
            if (given.getBooleanValue("sql")) {
                consumer.subscribe(topic, MessageSelector.bySql(topics.getString(topic)));
            } else {
                consumer.subscribe(topic, topics.getString(topic));
            }
        }
        String name = given.getString("name");
        int failTimes = given.getIntValue("failTimes");
        int level = given.getIntValue("failLevel");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    Thread.sleep(Ordering.number(message, "slow"));
                    Driver.emit(new JSONObject(true).fluentPut("event", "message")
                        .fluentPut("name", name).fluentPut("message", Driver.show(message)));
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
                if (given.containsKey("replyBy")) {
                    try {
                        Producing.reply(given.getString("replyBy"), message);
                    } catch (Exception error) {
                        throw new IllegalStateException(error);
                    }
                }
                if (message.getReconsumeTimes() < failTimes) {
                    context.setDelayLevelWhenNextConsume(level);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        CONSUMERS.put(name, consumer);
        return consumer.buildMQClientId();
    }

    /** The enum moved to another package after 4.9, so it is found by the setter's type. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void setBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Class type = method.getParameterTypes()[0];
                method.invoke(consumer, Enum.valueOf(type, "BROADCASTING"));
            }
        }
    }
}
