import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageAccessor;

/** Producers, and the questions any client may ask: messages by key, id and time, offsets. */
final class Producing {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();

    private Producing() {
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("producer", Producing::start);
        commands.put("closeProducer", given -> {
            PRODUCERS.remove(given.getString("name")).shutdown();
            return null;
        });
        commands.put("send", Producing::send);
        commands.put("recall", Producing::recall);
        commands.put("request", Producing::request);
        commands.put("queues", given -> Driver.showQueues(
            producer(given).fetchPublishMessageQueues(given.getString("topic"))));
        commands.put("query", given -> Driver.showAll(producer(given).queryMessage(
            given.getString("topic"), given.getString("key"), given.getIntValue("max"),
            given.getLongValue("begin"), given.getLongValue("end")).getMessageList()));
        commands.put("view", given -> Driver.show(
            producer(given).viewMessage(given.getString("topic"), given.getString("msgId"))));
        commands.put("offsets", given -> new JSONObject(true)
            .fluentPut("min", producer(given).minOffset(Driver.queue(given.getJSONObject("queue"))))
            .fluentPut("max", producer(given).maxOffset(Driver.queue(given.getJSONObject("queue"))))
            .fluentPut("earliest", producer(given)
                .earliestMsgStoreTime(Driver.queue(given.getJSONObject("queue")))));
        commands.put("search", given -> producer(given).searchOffset(
            Driver.queue(given.getJSONObject("queue")), given.getLongValue("time")));
    }

    private static DefaultMQProducer producer(JSONObject given) {
        return PRODUCERS.get(given.getString("name"));
    }

    /** Send a request and show its reply. */
    private static Object request(JSONObject given) throws Exception {
        Message reply = producer(given).request(
            message(given.getJSONObject("message")), given.getLongValue("timeout"));
        return new JSONObject(true)
            .fluentPut("body", Driver.mark(reply.getBody()))
            .fluentPut("tags", reply.getTags());
    }

    /** Answer a request with its own body behind `re: `. */
    static void reply(String name, MessageExt message) throws Exception {
        byte[] prefix = "re: ".getBytes(StandardCharsets.UTF_8);
        byte[] body = Arrays.copyOf(prefix, prefix.length + message.getBody().length);
        System.arraycopy(message.getBody(), 0, body, prefix.length, message.getBody().length);
        Message reply = MessageUtil.createReplyMessage(message, body);
        reply.setTags("reply");
        PRODUCERS.get(name).send(reply);
    }

    private static Object start(JSONObject given) throws Exception {
        DefaultMQProducer producer =
            new DefaultMQProducer(given.getString("group"), Driver.hook());
        Driver.configure(producer, given);
        if (given.containsKey("compressAbove")) {
            producer.setCompressMsgBodyOverHowmuch(given.getIntValue("compressAbove"));
        }
        producer.setSendMsgTimeout(10_000);
        producer.start();
        PRODUCERS.put(given.getString("name"), producer);
        return producer.buildMQClientId();
    }

    private static Object send(JSONObject given) throws Exception {
        DefaultMQProducer producer = producer(given);
        JSONArray wanted = given.getJSONArray("messages");
        String mode = given.getString("mode");
        if (mode.equals("batch")) {
            List<Message> messages = new ArrayList<>();
            for (int i = 0; i < wanted.size(); i++) {
                messages.add(message(wanted.getJSONObject(i)));
            }
            return new JSONArray().fluentAdd(show(producer.send(messages)));
        }
        if (mode.equals("async")) {
            return sendAsync(producer, wanted);
        }
        JSONArray results = new JSONArray();
        for (int i = 0; i < wanted.size(); i++) {
            JSONObject result = sendOne(producer, mode, wanted.getJSONObject(i));
            while (given.getBooleanValue("untilOk") && !"SEND_OK".equals(result.get("status"))) {
                result = sendOne(producer, mode, wanted.getJSONObject(i));
            }
            results.add(result);
            if (given.getBooleanValue("progress")) {
                Driver.emit(new JSONObject(true).fluentPut("event", "sent")
                    .fluentPut("name", given.getString("name")).fluentPut("result", result));
            }
        }
        return results;
    }

    private static JSONObject sendOne(DefaultMQProducer producer, String mode, JSONObject wanted) {
        try {
            Message message = message(wanted);
            switch (mode) {
                case "sync":
                    return show(producer.send(message));
                case "oneway":
                    producer.sendOneway(message);
                    return new JSONObject(true).fluentPut("status", "ONEWAY");
                case "ordered":
                    return show(producer.send(
                        message, new SelectMessageQueueByHash(), wanted.getString("shard")));
                case "queue":
                    return show(
                        producer.send(message, Driver.queue(wanted.getJSONObject("queue"))));
                default:
                    throw new IllegalArgumentException("no mode is called " + mode);
            }
        } catch (Exception error) {
            return new JSONObject(true).fluentPut("error", Driver.describe(error));
        }
    }

    private static JSONArray sendAsync(DefaultMQProducer producer, JSONArray wanted)
        throws InterruptedException {
        JSONObject[] results = new JSONObject[wanted.size()];
        CountDownLatch open = new CountDownLatch(results.length);
        for (int i = 0; i < results.length; i++) {
            int index = i;
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results[index] = show(result);
                    open.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    results[index] = new JSONObject(true)
                        .fluentPut("error", Driver.describe(error));
                    open.countDown();
                }
            };
            try {
                producer.send(message(wanted.getJSONObject(i)), callback);
            } catch (Exception error) {
                callback.onException(error);
            }
        }
        open.await();
        JSONArray shown = new JSONArray();
        for (JSONObject result : results) {
            shown.add(result);
        }
        return shown;
    }

    static Message message(JSONObject wanted) {
        Message message = new Message(
            wanted.getString("topic"), Base64.getDecoder().decode(wanted.getString("body")));
        if (wanted.containsKey("tags")) {
            message.setTags(wanted.getString("tags"));
        }
        if (wanted.containsKey("keys")) {
            message.setKeys(wanted.getString("keys"));
        }
        if (wanted.containsKey("flag")) {
            message.setFlag(wanted.getIntValue("flag"));
        }
        if (wanted.containsKey("delay")) {
            message.setDelayTimeLevel(wanted.getIntValue("delay"));
        }
        setTime(message, wanted, "deliverAt", "setDeliverTimeMs", "TIMER_DELIVER_MS");
        setTime(message, wanted, "delaySec", "setDelayTimeSec", "TIMER_DELAY_SEC");
        setTime(message, wanted, "delayMs", "setDelayTimeMs", "TIMER_DELAY_MS");
        JSONObject properties = wanted.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                message.putUserProperty(name, properties.getString(name));
            }
        }
        return message;
    }

    /** An exact time; the client 4.9 has no setter for it, so there the property is written. */
    private static void setTime(
        Message message, JSONObject wanted, String key, String setter, String property) {
        if (!wanted.containsKey(key)) {
            return;
        }
        long value = wanted.getLongValue(key);
        try {
            Message.class.getMethod(setter, long.class).invoke(message, value);
        } catch (NoSuchMethodException absent) {
            MessageAccessor.putProperty(message, property, String.valueOf(value));
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Take a timed message back; a client that cannot fails with NoSuchMethodException. */
    private static Object recall(JSONObject given) throws Exception {
        try {
            return DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                .invoke(producer(given), given.getString("topic"), given.getString("handle"));
        } catch (InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }

    /** The handle of a timed message; null where client or broker has none. */
    private static Object recallHandle(SendResult result) {
        try {
            return SendResult.class.getMethod("getRecallHandle").invoke(result);
        } catch (NoSuchMethodException absent) {
            return null;
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    static JSONObject show(SendResult result) {
        SendStatus status = result.getSendStatus();
        return new JSONObject(true)
            .fluentPut("recallHandle", recallHandle(result))
            .fluentPut("status", status.name())
            .fluentPut("msgId", result.getMsgId())
            .fluentPut("offsetMsgId", result.getOffsetMsgId())
            .fluentPut("queue", Driver.show(result.getMessageQueue()))
            .fluentPut("queueOffset", result.getQueueOffset());
    }
}
