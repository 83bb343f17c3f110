import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** Lateness of tasks in a JVM: java Lateness.java TASKS SPREAD_MS THREADS, where the threads compute without a pause. */
class Lateness {
    static volatile boolean stopped;
    static volatile long sink;

    public static void main(String[] args) throws InterruptedException {
        int tasks = Integer.parseInt(args[0]), spreadMs = Integer.parseInt(args[1]), threads = Integer.parseInt(args[2]);
        ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1);
        measure(timer, tasks, spreadMs); // warm
        for (int i = 0; i < threads; i++) {
            Thread busy = new Thread(() -> {
                long value = 1;
                while (!stopped)
                    for (int n = 0; n < 1_000_000; n++)
                        value = value * 31 % 1_000_003;
                sink = value;
            });
            busy.setDaemon(true);
            busy.start();
        }
        double[] lateMs = measure(timer, tasks, spreadMs);
        stopped = true;
        timer.shutdown();
        System.out.printf("[%f, %f, %f]%n", lateMs[tasks / 2], lateMs[(int) (tasks * 0.99)], lateMs[tasks - 1]);
    }

    static double[] measure(ScheduledThreadPoolExecutor timer, int tasks, int spreadMs) throws InterruptedException {
        double[] lateMs = new double[tasks];
        CountDownLatch left = new CountDownLatch(tasks);
        long start = System.nanoTime();
        for (int i = 0; i < tasks; i++) {
            int number = i;
            long dueNs = start + (500L + (long) spreadMs * i / tasks) * 1_000_000;
            timer.schedule(() -> {
                lateMs[number] = (System.nanoTime() - dueNs) / 1e6;
                left.countDown();
            }, dueNs - System.nanoTime(), TimeUnit.NANOSECONDS);
        }
        left.await();
        Arrays.sort(lateMs);
        return lateMs;
    }
}
