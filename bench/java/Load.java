import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Load through RocketMQ's own client, against whichever broker a command names.
 *
 * <p>One process serves a whole session, so that its code is compiled for both brokers alike. Each
 * line on stdin is a command of `key=value` words; each line on stdout is an event as JSON: `begin`
 * and `end` at the ends of the timed part, then `done` or `error`. What was acknowledged goes to
 * the file `out`: per send three big-endian longs (message id, queue id, queue offset of its first
 * message); what was consumed: per message two (message id, CRC-32 of its body).
 *
 * <p>A body is twelve digits, its message id, and then the digits 0 to 9 over and over. Thread t
 * gives its messages the ids t * 10^9, t * 10^9 + 1, ...
 */
public final class Load {
    private static final long IDS_PER_THREAD = 1_000_000_000L;
    private static final int ID_DIGITS = 12;
    private static final String[] TAGS = {"TagA", "TagB", "TagC", "TagD"};
    private static final int SEND_TIMEOUT_MS = 10_000;
    private static final int IN_FLIGHT_PER_THREAD = 32;
    private static final AtomicInteger INSTANCES = new AtomicInteger();

    private Load() {
    }

    public static void main(String[] arguments) throws IOException {
        BufferedReader commands =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            Map<String, String> given = new HashMap<>();
            for (String word : line.trim().split(" ")) {
                int equals = word.indexOf('=');
                given.put(word.substring(0, equals), word.substring(equals + 1));
            }
            try {
                if (given.get("do").equals("send")) {
                    new Sending(given).run();
                } else {
                    new Consuming(given).run();
                }
            } catch (Exception error) {
                emit("{\"event\":\"error\",\"text\":" + quoted(String.valueOf(error)) + "}");
            }
        }
        System.exit(0);
    }

    private static synchronized void emit(String event) {
        System.out.println(event);
        System.out.flush();
    }

    private static String quoted(String text) {
        StringBuilder result = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                result.append('\\').append(c);
            } else if (c < ' ') {
                result.append(' ');
            } else {
                result.append(c);
            }
        }
        return result.append('"').toString();
    }

    private static byte[] body(long id, int size) {
        byte[] body = new byte[size];
        for (int i = ID_DIGITS - 1; i >= 0; i--) {
            body[i] = (byte) ('0' + id % 10);
            id /= 10;
        }
        for (int i = ID_DIGITS; i < size; i++) {
            body[i] = (byte) ('0' + (i - ID_DIGITS) % 10);
        }
        return body;
    }

    /** Rows of longs that grow; used by one thread at a time. */
    private static final class Rows {
        private final int width;
        private long[] cells;
        private int used;

        Rows(int width) {
            this.width = width;
            this.cells = new long[width * 4096];
        }

        void add(long... row) {
            if (used + width > cells.length) {
                cells = Arrays.copyOf(cells, cells.length * 2);
            }
            System.arraycopy(row, 0, cells, used, width);
            used += width;
        }
    }

    /** One set of rows for every thread that notes something, all of them written to one file. */
    private static final class Notes {
        private final List<Rows> all = new ArrayList<>();
        private final ThreadLocal<Rows> own;

        Notes(int width) {
            own = ThreadLocal.withInitial(() -> {
                Rows rows = new Rows(width);
                synchronized (all) {
                    all.add(rows);
                }
                return rows;
            });
        }

        Rows own() {
            return own.get();
        }

        void write(String path, int columns) throws IOException {
            try (DataOutputStream out = new DataOutputStream(
                new BufferedOutputStream(Files.newOutputStream(Paths.get(path)), 1 << 20))) {
                synchronized (all) {
                    for (Rows rows : all) {
                        for (int row = 0; row < rows.used; row += rows.width) {
                            for (int column = 0; column < columns; column++) {
                                out.writeLong(rows.cells[row + column]);
                            }
                        }
                    }
                }
            }
        }
    }

    /** Threads that send: one after the other, 32 in flight, or in batches. */
    private static final class Sending {
        private final Map<String, String> given;
        private final String topic;
        private final String mode;
        private final int threads;
        private final int size;
        private final int batch;
        // id, queue id, queue offset, when it was answered, how long it took
        private final Notes notes = new Notes(5);
        private final AtomicReference<String> fault = new AtomicReference<>();
        private final AtomicLong faults = new AtomicLong();
        private volatile boolean stop;

        Sending(Map<String, String> given) {
            this.given = given;
            topic = given.get("topic");
            mode = given.get("mode");
            threads = Integer.parseInt(given.get("threads"));
            size = Integer.parseInt(given.get("body"));
            batch = Integer.parseInt(given.get("batch"));
        }

        void run() throws Exception {
            DefaultMQProducer producer = new DefaultMQProducer("bench_java_producer");
            producer.setNamesrvAddr(given.get("nameServer"));
            producer.setInstanceName("load" + INSTANCES.incrementAndGet());
            producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
            // A repeated send could be there twice.
            producer.setRetryTimesWhenSendFailed(0);
            producer.setRetryTimesWhenSendAsyncFailed(0);
            producer.start();
            try {
                Thread[] senders = new Thread[threads];
                for (int t = 0; t < threads; t++) {
                    int number = t;
                    senders[t] = new Thread(() -> send(producer, number), "sender-" + t);
                    senders[t].start();
                }
                pause(given.get("warmUp"));
                long begin = System.nanoTime();
                emit("{\"event\":\"begin\"}");
                pause(given.get("seconds"));
                long end = System.nanoTime();
                emit("{\"event\":\"end\"}");
                stop = true;
                for (Thread sender : senders) {
                    sender.join();
                }
                notes.write(given.get("out"), 3);
                emit(result(begin, end));
            } finally {
                producer.shutdown();
            }
        }

        private void pause(String seconds) throws InterruptedException {
            long nanos = (long) (Double.parseDouble(seconds) * 1e9);
            TimeUnit.NANOSECONDS.sleep(nanos);
        }

        private void failed(Throwable error) {
            faults.incrementAndGet();
            fault.compareAndSet(null, String.valueOf(error));
        }

        private void send(DefaultMQProducer producer, int thread) {
            Semaphore room = new Semaphore(IN_FLIGHT_PER_THREAD);
            long next = thread * IDS_PER_THREAD;
            try {
                while (!stop && faults.get() == 0) {
                    if (mode.equals("async")) {
                        room.acquire();
                        sendAsync(producer, next++, room);
                    } else if (mode.equals("batch")) {
                        List<Message> messages = new ArrayList<>(batch);
                        for (int i = 0; i < batch; i++) {
                            messages.add(message(next + i));
                        }
                        long begin = System.nanoTime();
                        note(next, producer.send(messages), begin);
                        next += batch;
                    } else {
                        Message message = message(next);
                        long begin = System.nanoTime();
                        note(next++, producer.send(message), begin);
                    }
                }
                room.acquire(IN_FLIGHT_PER_THREAD);
            } catch (Exception error) {
                failed(error);
            }
        }

        private void sendAsync(DefaultMQProducer producer, long id, Semaphore room)
            throws Exception {
            long begin = System.nanoTime();
            producer.send(message(id), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    note(id, result, begin);
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    failed(error);
                    room.release();
                }
            });
        }

        private Message message(long id) {
            return new Message(topic, TAGS[(int) (id & 3)], "k" + id, body(id, size));
        }

        private void note(long id, SendResult result, long begin) {
            long now = System.nanoTime();
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                failed(new IllegalStateException("status " + result.getSendStatus()));
                return;
            }
            notes.own().add(id, result.getMessageQueue().getQueueId(), result.getQueueOffset(),
                now, now - begin);
        }

        private String result(long begin, long end) {
            long[] durations = new long[1024];
            int count = 0;
            for (Rows rows : notes.all) {
                for (int row = 0; row < rows.used; row += rows.width) {
                    long answered = rows.cells[row + 3];
                    if (answered >= begin && answered < end) {
                        if (count == durations.length) {
                            durations = Arrays.copyOf(durations, count * 2);
                        }
                        durations[count++] = rows.cells[row + 4];
                    }
                }
            }
            durations = Arrays.copyOf(durations, count);
            Arrays.sort(durations);
            String text = fault.get();
            return "{\"event\":\"done\",\"done\":" + count * (mode.equals("batch") ? batch : 1L)
                + ",\"nanos\":" + (end - begin) + ",\"faults\":" + faults.get()
                + ",\"fault\":" + (text == null ? "\"\"" : quoted(text))
                + ",\"p50\":" + at(durations, 0.5) + ",\"p99\":" + at(durations, 0.99)
                + ",\"p999\":" + at(durations, 0.999) + ",\"max\":" + at(durations, 1.0) + "}";
        }

        private static long at(long[] sorted, double share) {
            return sorted.length == 0 ? 0 : sorted[(int) Math.min(sorted.length - 1L,
                (long) (share * sorted.length))];
        }
    }

    /** A push consumer with all its defaults that reads a backlog from its beginning. */
    private static final class Consuming {
        private final Map<String, String> given;
        private final Notes notes = new Notes(2);
        private final AtomicLong received = new AtomicLong();
        private final AtomicLong firstNanos = new AtomicLong();
        private final CountDownLatch complete = new CountDownLatch(1);
        private volatile long lastNanos;

        Consuming(Map<String, String> given) {
            this.given = given;
        }

        void run() throws Exception {
            long wanted = Long.parseLong(given.get("messages"));
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(given.get("group"));
            consumer.setNamesrvAddr(given.get("nameServer"));
            consumer.setInstanceName("load" + INSTANCES.incrementAndGet());
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(given.get("topic"), "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                if (received.get() == 0 && firstNanos.compareAndSet(0, System.nanoTime())) {
                    emit("{\"event\":\"begin\"}");
                }
                Rows rows = notes.own();
                for (MessageExt message : messages) {
                    CRC32 crc = new CRC32();
                    crc.update(message.getBody());
                    String head = new String(message.getBody(), 0, ID_DIGITS,
                        StandardCharsets.US_ASCII);
                    rows.add(Long.parseLong(head), crc.getValue());
                }
                if (received.addAndGet(messages.size()) == wanted) {
                    lastNanos = System.nanoTime();
                    emit("{\"event\":\"end\"}");
                    complete.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            boolean isComplete = complete.await(
                (long) (Double.parseDouble(given.get("seconds")) * 1000), TimeUnit.MILLISECONDS);
            // Whatever came twice has a moment to show itself.
            Thread.sleep(isComplete ? 100 : 0);
            consumer.shutdown();
            notes.write(given.get("out"), 2);
            emit("{\"event\":\"done\",\"done\":" + received.get() + ",\"nanos\":"
                + Math.max(1, lastNanos - firstNanos.get()) + ",\"faults\":" + (isComplete ? 0 : 1)
                + ",\"fault\":\"" + (isComplete ? "" : "the backlog was not consumed in time")
                + "\"}");
        }
    }
}
