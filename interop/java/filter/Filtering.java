import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;

import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BitsArray;
import org.apache.rocketmq.filter.util.BloomFilter;

/**
 * Asks RocketMQ's own filter classes; one question a line, one answer a line, fields between tabs.
 *
 * <pre>
 * filter TEXT (| NAME VALUE ...)...   REFUSED, or per message TRUE, FALSE, NULL or THROWN
 * bloom F N KEY                       k, m, the positions, and the bytes of the bits they set
 * </pre>
 *
 * Texts are base64 of UTF-8; a bar begins a message's properties.
 */
public final class Filtering {
    private Filtering() {
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, "US-ASCII");
        String line;
        while ((line = in.readLine()) != null) {
            String[] fields = line.split("\t", -1);
            out.println(fields[0].equals("bloom") ? bloom(fields) : filter(fields));
        }
        out.flush();
    }

    private static String text(String field) {
        return new String(Base64.getDecoder().decode(field), StandardCharsets.UTF_8);
    }

    private static String filter(String[] fields) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text(fields[1]));
        } catch (Exception refused) {
            return "REFUSED";
        }
        StringBuilder answers = new StringBuilder();
        int at = 2;
        while (at < fields.length) {
            Map<String, String> properties = new HashMap<>();
            at++;
            for (; at < fields.length && !fields[at].equals("|"); at += 2) {
                properties.put(text(fields[at]), text(fields[at + 1]));
            }
            answers.append(answers.length() == 0 ? "" : "\t").append(answer(expression, properties));
        }
        return answers.toString();
    }

    private static String answer(Expression expression, Map<String, String> properties) {
        try {
            Object value = expression.evaluate(new MessageEvaluationContext(properties));
            return value == null ? "NULL" : value.toString().toUpperCase();
        } catch (Throwable thrown) {
            return "THROWN";
        }
    }

    private static String bloom(String[] fields) {
        BloomFilter filter =
            BloomFilter.createByFn(Integer.parseInt(fields[1]), Integer.parseInt(fields[2]));
        StringBuilder answer = new StringBuilder();
        answer.append(filter.getK()).append("\t").append(filter.getM());
        String key = text(fields[3]);
        for (int position : filter.calcBitPositions(key)) {
            answer.append("\t").append(position);
        }
        BitsArray bits = BitsArray.create(filter.getM());
        filter.hashTo(key, bits);
        return answer.append("\t").append(Base64.getEncoder().encodeToString(bits.bytes())).toString();
    }
}
