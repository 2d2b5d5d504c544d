import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactional producers: a message's property `local` says how its local transaction ends
 * (COMMIT, ROLLBACK, UNKNOW), its property `check` what a check-back is told. Each check-back is a
 * message event under the producer's name.
 */
final class Transacting {
    private static final Map<String, TransactionMQProducer> PRODUCERS = new ConcurrentHashMap<>();

    private Transacting() {
    }

    static void register(Map<String, Driver.Command> commands) {
        commands.put("transactor", Transacting::start);
        commands.put("closeTransactor", given -> {
            PRODUCERS.remove(given.getString("name")).shutdown();
            return null;
        });
        commands.put("transact", Transacting::send);
    }

    private static LocalTransactionState state(Message message, String property) {
        String state = message.getUserProperty(property);
        return state == null
            ? LocalTransactionState.UNKNOW
            : LocalTransactionState.valueOf(
                state.equals("UNKNOW") ? state : state + "_MESSAGE");
    }

    private static Object start(JSONObject given) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(given.getString("group"));
        Driver.configure(producer, given);
        producer.setSendMsgTimeout(10_000);
        String name = given.getString("name");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object given) {
                return state(message, "local");
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                try {
                    Driver.emit(new JSONObject(true).fluentPut("event", "message")
                        .fluentPut("name", name).fluentPut("message", Driver.show(message)));
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
                return state(message, "check");
            }
        });
        producer.start();
        PRODUCERS.put(name, producer);
        return producer.buildMQClientId();
    }

    private static Object send(JSONObject given) throws Exception {
        TransactionMQProducer producer = PRODUCERS.get(given.getString("name"));
        JSONArray wanted = given.getJSONArray("messages");
        JSONArray results = new JSONArray();
        for (int i = 0; i < wanted.size(); i++) {
            results.add(Producing.show(producer.sendMessageInTransaction(
                Producing.message(wanted.getJSONObject(i)), null)));
        }
        return results;
    }
}
