// A managed program whose stacks interleave with native ones, for recording. See README.md for what each thread does.
//
// What its threads spend their time in stands on lines marked `// hot: NAME`: the tests compare recorded lines with these.
using System;
using System.Diagnostics;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;

namespace Mixed
{
    /// What native.dll exports.
    public static class Native
    {
        public delegate int Callback(int depth);

        /// Calls back with `depth`.
        [DllImport("native.dll")] public static extern int native_call(Callback callback, int depth);
        /// Spends time in native code: so many rounds.
        [DllImport("native.dll")] public static extern int native_work(int rounds);
        /// Waits in native code.
        [DllImport("native.dll")] public static extern void native_wait(int milliseconds);
        [DllImport("native.dll")] public static extern int native_pid();
        /// Loads a DLL.
        [DllImport("native.dll", CharSet = CharSet.Unicode)] public static extern int native_load(string path);
    }

    public interface IShape { int Area(int n); }

    public class Square : IShape
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public int Area(int n) { return n * n; }
    }

    public class Circle : IShape
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public int Area(int n) { return n * n * 22 / 7; }
    }

    public class Triangle : IShape
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public int Area(int n) { return n * n / 2; }
    }

    public static class Generic<T>
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static int Deep<U>(T first, U second, int depth)
        {
            if (depth == 0)
                return Work.Spin(20000);
            return Deep<U>(first, second, depth - 1) + 1;
        }

        public class Inner
        {
            [MethodImpl(MethodImplOptions.NoInlining)]
            public static int Method(ref int a, string[] b, out long c, object d)
            {
                c = Work.Spin(20000);
                return a + (int)c;
            }
        }
    }

    public static class Work
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static int Spin(int rounds)
        {
            int sum = 0;
            for (int i = 0; i < rounds; i++)
                sum = sum * 31 + i; // hot: Spin
            return sum;
        }

        /// Managed, native, managed, native, managed …: `depth` times down and back.
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static int Down(int depth)
        {
            if (depth <= 0)
                return Native.native_work(20000) + Spin(20000);
            return Between(depth) + 1;
        }

        static readonly Native.Callback callback = Down;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Between(int depth) { return Native.native_call(callback, depth - 1) + 1; }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Throw(int depth)
        {
            try
            {
                if (depth > 0)
                    Throw(depth - 1);
                else
                    throw new InvalidOperationException("thrown on purpose");
            }
            finally
            {
                InFinally();
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static bool Filter(Exception exception) { return Spin(5000) != 1 && exception != null; }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int InFinally() { return Spin(5000); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int InCatch() { return Spin(5000); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static int Catch()
        {
            try
            {
                Throw(3);
            }
            catch (InvalidOperationException exception) when (Filter(exception))
            {
                return InCatch();
            }
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int CallArea(IShape shape, int n) { return shape.Area(n); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static int Shapes(IShape[] shapes)
        {
            int sum = 0;
            for (int i = 0; i < 20000; i++)
                sum += CallArea(shapes[i % 3], i); // hot: Shapes
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static int Lambda(int x)
        {
            Func<int, int> inner = n => Spin(20000) + x + n;
            return inner(3);
        }

#if TRIMMED // what async methods compile into is not in that framework
        public static Task<int> Outer(int x) { return Task.Run(() => Middle(x) + 1); }

        static int Middle(int x) { return Spin(20000) + x; }
#else
        public static async Task<int> Outer(int x)
        {
            await Task.Yield();
            return await Middle(x) + 1;
        }

        static async Task<int> Middle(int x)
        {
            await Task.Delay(1);
            return Spin(20000) + x;
        }
#endif

        /// int Made(int x) { return Spin(x); }, compiled at run time.
        public static Func<int, int> Make()
        {
            MethodInfo spin = new Func<int, int>(Spin).Method;
            DynamicMethod made = new DynamicMethod("Made", typeof(int), new Type[] { typeof(int) }, typeof(Work).Module, true);
            ILGenerator il = made.GetILGenerator();
            il.Emit(OpCodes.Ldarg_0);
            il.Emit(OpCodes.Call, spin);
            il.Emit(OpCodes.Ret);
            return (Func<int, int>)made.CreateDelegate(typeof(Func<int, int>));
        }
    }

    public static class Program
    {
        static volatile bool over;
        static object kept;
        static int failures;

        /// Runs `round` until the end on a thread of this name, with pauses: all threads together leave a processor free.
        internal static Thread Start(string name, Func<int> round)
        {
            Thread thread = new Thread(() =>
            {
                int first = round();
                while (!over)
                {
                    for (int i = 0; i < 8 && !over; i++)
                        if (round() != first)
                            Interlocked.Increment(ref failures);
                    Thread.Sleep(12);
                }
            });
            thread.Name = name;
            thread.IsBackground = true;
            thread.Start();
            return thread;
        }

        static int Garbage()
        {
            for (int i = 0; i < 100; i++)
                kept = new byte[8000];
            kept = new byte[100000];
            return 0;
        }

        static int Sleeper()
        {
            Native.native_wait(50);
            return 0;
        }

        /// Arguments: seconds (0: until killed; default 5), a DLL to load. Ends earlier once the file named by MIXED_STOP exists.
        static int Main(string[] arguments)
        {
            int seconds = arguments.Length > 0 ? int.Parse(arguments[0]) : 5;
            IShape[] shapes = { new Square(), new Circle(), new Triangle() };
            Thread.CurrentThread.Name = "main";
            Func<int, int> made = Work.Make();
            Thread[] threads =
            {
                Start("mixed", () => Work.Down(3)),
                Start("generics", () =>
                {
                    int a = 1;
                    return Generic<string>.Deep<int>("a", 1, 2) + Generic<int>.Deep<object>(1, null, 1)
                        + Generic<object>.Inner.Method(ref a, null, out long c, null) + Work.Lambda(2);
                }),
                Start("exceptions", Work.Catch),
                Start("interfaces", () => Work.Shapes(shapes)),
                Start("garbage", Garbage),
                Start("dynamic", () => made(20000)),
                Start("async", () => Work.Outer(1).Result),
                Start("sleeper", Sleeper),
            };
            if (arguments.Length > 1 && Native.native_load(arguments[1]) == 0)
                return 2;
            Console.WriteLine("pid " + Native.native_pid());
            Console.WriteLine("ready"); Mechanisms.StartIfAsked();
            Stopwatch clock = Stopwatch.StartNew();
            string stop = Environment.GetEnvironmentVariable("MIXED_STOP");
            while ((seconds == 0 || clock.Elapsed.TotalSeconds < seconds) && (stop == null || !System.IO.File.Exists(stop)))
                Thread.Sleep(20);
            over = true;
            foreach (Thread thread in threads)
                thread.Join();
            Console.WriteLine(failures == 0 ? "checksum right" : "checksum WRONG");
            return failures == 0 ? 0 : 1;
        }
    }
}
