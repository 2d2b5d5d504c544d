import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * RocketMQ's Java client on a lead: one JSON command per line on stdin, one JSON event per line on
 * stdout. The commands are listed in interop/README.md; what they should bring is decided by the
 * caller, never here. Compiles against every client from 4.9 on.
 */
public final class Driver {
    /** One command: its result becomes the answer, its exception the error. */
    interface Command {
        Object run(JSONObject given) throws Exception;
    }

    private static final int BODY_SHOWN_BYTES = 1024;
    private static PrintStream out;
    /** By name; another main class of this folder may add its own. */
    static final Map<String, Command> COMMANDS = new ConcurrentHashMap<>();

    private Driver() {
    }

    public static void main(String[] arguments) throws Exception {
        out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, "UTF-8");
        System.setOut(System.err); // what a library prints must not stand between the events
        Producing.register(COMMANDS);
        Consuming.register(COMMANDS);
        Pulling.register(COMMANDS);
        Transacting.register(COMMANDS);
        Ordering.register(COMMANDS);
        ExecutorService workers = Executors.newCachedThreadPool(work -> {
            Thread thread = new Thread(work, "command");
            thread.setDaemon(true);
            return thread;
        });
        emit(new JSONObject().fluentPut("event", "ready"));
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject given = JSON.parseObject(line);
            workers.execute(() -> answer(given));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(JSONObject given) {
        JSONObject answer = new JSONObject(true);
        answer.put("id", given.getIntValue("id"));
        try {
            Command command = COMMANDS.get(given.getString("do"));
            if (command == null) {
                throw new IllegalArgumentException("no command is called " + given.getString("do"));
            }
            answer.put("result", command.run(given));
        } catch (Throwable error) {
            answer.put("error", describe(error));
        }
        emit(answer);
    }

    /** Write one event; whole lines only, whoever calls. */
    static void emit(JSONObject event) {
        String line = JSON.toJSONString(event, SerializerFeature.WriteMapNullValue,
            SerializerFeature.DisableCircularReferenceDetect);
        synchronized (out) {
            out.println(line);
            out.flush();
        }
    }

    static JSONObject describe(Throwable error) {
        JSONObject described = new JSONObject(true);
        described.put("type", error.getClass().getSimpleName());
        described.put("text", String.valueOf(error.getMessage()));
        if (error instanceof MQBrokerException) {
            described.put("code", ((MQBrokerException) error).getResponseCode());
        } else if (error instanceof MQClientException) {
            described.put("code", ((MQClientException) error).getResponseCode());
        }
        return described;
    }

    /**
     * What signs the requests of all clients, with the properties interop.accessKey and
     * interop.secretKey; null without them. By name, since old releases have it in another package.
     */
    static RPCHook hook() throws ReflectiveOperationException {
        String key = System.getProperty("interop.accessKey");
        if (key == null) {
            return null;
        }
        Class<?> pair = Class.forName("org.apache.rocketmq.acl.common.SessionCredentials");
        Object credentials = pair.getConstructor(String.class, String.class)
            .newInstance(key, System.getProperty("interop.secretKey"));
        return (RPCHook) Class.forName("org.apache.rocketmq.acl.common.AclClientRPCHook")
            .getConstructor(pair).newInstance(credentials);
    }

    /** The settings every kind of client shares. */
    static void configure(ClientConfig client, JSONObject given) {
        client.setNamesrvAddr(given.getString("nameServer"));
        if (given.containsKey("instance")) {
            client.setInstanceName(given.getString("instance"));
        }
        if (given.containsKey("unit")) {
            client.setUnitName(given.getString("unit"));
        }
        if (given.containsKey("namespace")) {
            client.setNamespace(given.getString("namespace"));
        }
        client.setVipChannelEnabled(given.getBooleanValue("vip"));
        client.setHeartbeatBrokerInterval(1000);
        client.setPollNameServerInterval(1000);
        client.setPersistConsumerOffsetInterval(500);
    }

    static MessageQueue queue(JSONObject given) {
        return new MessageQueue(
            given.getString("topic"), given.getString("broker"), given.getIntValue("id"));
    }

    static JSONObject show(MessageQueue queue) {
        return new JSONObject(true)
            .fluentPut("topic", queue.getTopic())
            .fluentPut("broker", queue.getBrokerName())
            .fluentPut("id", queue.getQueueId());
    }

    static JSONArray showQueues(Iterable<MessageQueue> queues) {
        JSONArray shown = new JSONArray();
        queues.forEach(queue -> shown.add(show(queue)));
        return shown;
    }

    static JSONArray showAll(List<MessageExt> messages) throws Exception {
        JSONArray shown = new JSONArray();
        if (messages != null) {
            for (MessageExt message : messages) {
                shown.add(show(message));
            }
        }
        return shown;
    }

    static JSONObject show(MessageExt message) throws Exception {
        JSONObject shown = new JSONObject(true);
        shown.put("topic", message.getTopic());
        shown.put("broker", message.getBrokerName());
        shown.put("queueId", message.getQueueId());
        shown.put("queueOffset", message.getQueueOffset());
        shown.put("body", mark(message.getBody()));
        shown.put("tags", message.getTags());
        shown.put("keys", message.getKeys());
        shown.put("properties", message.getProperties());
        shown.put("flag", message.getFlag());
        shown.put("reconsumeTimes", message.getReconsumeTimes());
        shown.put("msgId", message.getMsgId());
        if (message instanceof MessageClientExt) {
            shown.put("offsetMsgId", ((MessageClientExt) message).getOffsetMsgId());
        }
        shown.put("bornTime", message.getBornTimestamp());
        shown.put("storeTime", message.getStoreTimestamp());
        shown.put("bornHost", message.getBornHostString());
        return shown;
    }

    /** A short body in base64, a long one by length and digest. */
    static String mark(byte[] body) throws Exception {
        if (body == null) {
            return null;
        }
        if (body.length <= BODY_SHOWN_BYTES) {
            return Base64.getEncoder().encodeToString(body);
        }
        StringBuilder hex = new StringBuilder("sha256:").append(body.length).append(':');
        for (byte value : MessageDigest.getInstance("SHA-256").digest(body)) {
            hex.append(String.format("%02x", value));
        }
        return hex.toString();
    }
}
