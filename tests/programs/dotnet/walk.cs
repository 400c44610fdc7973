// Managed frames of every layout that a 32-bit JIT makes: arguments that are pushed while others are computed, stackalloc, doubles,
// filters and finally blocks, interfaces, structs by value, recursion, generics, locks. CPU-bound; `walk.dll SECONDS`.
using System;
using System.Runtime.CompilerServices;
using System.Threading;
using Mixed;

namespace Walk
{
    interface IStep { int Go(int a, int b, int c); }

    class Short : IStep
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public int Go(int a, int b, int c) { return Program.Leaf(a) + b * c; }
    }

    class Long : IStep
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public int Go(int a, int b, int c) { return Program.Nest(a) + b - c; }
    }

    struct Triple { public long A, B, C; }

    static unsafe class Program
    {
        const MethodImplOptions Call = MethodImplOptions.NoInlining;
        static volatile bool over;

        [MethodImpl(Call)] internal static int Leaf(int a) { return a * 31 + 7; }

        [MethodImpl(Call)]
        static int Many(int a, int b, int c, int d, int e, int f)
        {
            return Leaf(a) + Leaf(b) + Leaf(c) * Leaf(d) + e + f;
        }

        [MethodImpl(Call)]
        internal static int Nest(int a)
        {
            return Many(Leaf(a), Leaf(a + 1), Leaf(a + 2), Many(1, 2, 3, Leaf(a + 3), 5, Leaf(6)), Leaf(a + 4),
                Leaf(Many(a, a, a, a, a, Leaf(a))));
        }

        [MethodImpl(Call)]
        static double Doubles(double x, double y)
        {
            double sum = 0;
            double* at = &sum;
            for (int i = 0; i < 4; i++) { sum += x * y + Leaf(i); *at += 1; }
            return sum;
        }

        [MethodImpl(Call)]
        static int OnStack(int size)
        {
            byte* bytes = stackalloc byte[size];
            for (int i = 0; i < size; i += 64) bytes[i] = (byte)Leaf(i);
            return bytes[0] + Leaf(size);
        }

        [MethodImpl(Call)]
        static int Filters(int n)
        {
            int sum = 0;
            try
            {
                sum += Leaf(n);
                if (n % 7 == 3) throw new InvalidOperationException();
                sum += Nest(n);
            }
            catch (InvalidOperationException) when (Leaf(n) != 1) { sum += Leaf(2); }
            finally { sum += Nest(3); }
            return sum;
        }

        [MethodImpl(Call)] static int Virtual(IStep step, int a) { return step.Go(a, Leaf(a), step.Go(1, 2, Leaf(3))); }

        [MethodImpl(Call)]
        static Triple ByValue(Triple x, Triple y, int k)
        {
            Triple result;
            result.A = x.A + y.B + Leaf(k);
            result.B = x.C;
            result.C = k;
            return result;
        }

        [MethodImpl(Call)]
        static long Structs(int k)
        {
            Triple triple = new Triple { A = k, B = 2, C = 3 };
            triple = ByValue(triple, ByValue(triple, triple, Leaf(k)), Leaf(k + 1));
            return triple.A;
        }

        [MethodImpl(Call)]
        static int Recursion(int depth, int a) { return depth == 0 ? Nest(a) : Recursion(depth - 1, a + 1) + Leaf(a); }

        [MethodImpl(Call)]
        static T Generic<T>(T x, int n) { object boxed = x; return n == 0 ? x : Generic<T>((T)boxed, n - 1); }

        [MethodImpl(MethodImplOptions.Synchronized | Call)]
        static int Locked(int a) { return Leaf(a) + Nest(a); }

        [MethodImpl(Call)]
        static int Round(int i, IStep[] steps)
        {
            return Nest(i) + (int)Doubles(i, 2) + OnStack(100 + i % 1000) + Virtual(steps[i & 1], i) + (int)Structs(i)
                + Recursion(12, i) + Generic("x", 3).Length + Generic(i, 3) + Locked(i) + (i % 2000 == 3 ? Filters(i) : 0);
        }

        static int Main(string[] arguments)
        {
            for (int t = 0; t < 3; t++)
            {
                int first = t;
                var thread = new Thread(() =>
                {
                    IStep[] steps = { new Short(), new Long() };
                    for (int i = first; !over; i++) Round(i, steps);
                });
                thread.IsBackground = true;
                thread.Start();
            }
            Console.WriteLine("pid " + Native.native_pid());
            Console.WriteLine("ready");
            Thread.Sleep(int.Parse(arguments[0]) * 1000);
            over = true;
            return 0;
        }
    }
}
