package shaketable;

import org.apache.rocketmq.tools.command.MQAdminStartup;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/**
 * Runs Apache's mqadmin again and again: a line of stdin is one call, its words parted by tabs.
 * Behind what a call printed stands the line "called".
 */
public final class Admin {
    public static void main(String[] args) throws Exception {
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String call = calls.readLine(); call != null; call = calls.readLine()) {
            MQAdminStartup.main0(call.split("\t"), null);
            System.out.println("\ncalled"); // some leave their last line open
        }
        System.exit(0);
    }
}
