import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.Permission;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The driver with RocketMQ's mqadmin in it: the command `mqadmin` runs one line of it inside this
 * process and answers with what it wrote, and with the status it would have ended the process with.
 * Needs -Djava.security.manager=allow, since mqadmin ends the process after a bad argument.
 */
public final class MqAdmin {
    /** A command wanted to end the process. */
    private static final class Exit extends SecurityException {
        final int status;

        Exit(int status) {
            super("exit " + status);
            this.status = status;
        }
    }

    /** The list of commands is not for everybody to see. */
    private static final class Commands extends MQAdminStartup {
        static void run(String[] line) throws Exception {
            SUB_COMMANDS.clear(); // each line gets new commands, as in a process of its own
            main0(line, Driver.hook());
        }
    }

    private MqAdmin() {
    }

    public static void main(String[] arguments) throws Exception {
        Driver.COMMANDS.put("mqadmin", given -> run(given.getJSONArray("line")));
        Driver.main(arguments);
    }

    /** One after another: standard output belongs to the whole process. */
    private static synchronized JSONObject run(JSONArray line) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream outBefore = System.out;
        PrintStream errBefore = System.err;
        int status = 0;
        Thread waker = wakeEventThreads(Thread.currentThread());
        System.setOut(new PrintStream(out, true, "UTF-8"));
        System.setErr(new PrintStream(err, true, "UTF-8"));
        System.setSecurityManager(new SecurityManager() {
            @Override
            public void checkPermission(Permission permission) {
            }

            @Override
            public void checkExit(int wanted) {
                throw new Exit(wanted);
            }
        });
        try {
            Commands.run(line.toArray(new String[0]));
        } catch (Exit exit) {
            status = exit.status;
        } finally {
            waker.interrupt();
            System.setSecurityManager(null);
            System.out.flush();
            System.err.flush();
            System.setOut(outBefore);
            System.setErr(errBefore);
        }
        return new JSONObject(true)
            .fluentPut("out", new String(out.toByteArray(), StandardCharsets.UTF_8))
            .fluentPut("err", new String(err.toByteArray(), StandardCharsets.UTF_8))
            .fluentPut("status", status);
    }

    /**
     * A client that stops waits for a thread that sleeps in its queue for up to three seconds.
     * Waking it, which it takes for an error to be logged, makes three seconds of most lines.
     */
    private static Thread wakeEventThreads(Thread runner) {
        Thread waker = new Thread(() -> {
            try {
                for (;;) {
                    Thread.sleep(5);
                    for (StackTraceElement frame : runner.getStackTrace()) {
                        if (frame.getClassName().endsWith("ServiceThread")
                            && frame.getMethodName().equals("shutdown")) {
                            wake();
                            break;
                        }
                    }
                }
            } catch (InterruptedException stopped) {
                return;
            }
        }, "waker");
        waker.setDaemon(true);
        waker.start();
        return waker;
    }

    private static void wake() {
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().startsWith("NettyEventExecutor")) {
                thread.interrupt();
            }
        }
    }
}
