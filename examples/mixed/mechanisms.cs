// Threads that are nearly always in a state in which CoreCLR keeps a stack's registers in an explicit Frame of its own kind, or leaves a frame
// out. Started only where the environment variable MIXED_MECHANISMS is set. See README.md for what each one shows.
using System;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Mixed
{
    public static class Mechanisms
    {
        class Node
        {
            public Node Left, Right;
            public int Value;
        }

        public static void StartIfAsked()
        {
            if (Environment.GetEnvironmentVariable("MIXED_MECHANISMS") == null)
                return;
            Func<int, int> tail = MakeTailCaller();
            Node heap = Tree(15);
            Program.Start("thrower", Throw);
            Program.Start("null dereference", Fault);
            Program.Start("calls", () => Calls(3000000));
            Program.Start("loop", () => Work.Spin(10000000)); // no call: the compiler makes every instruction a safe point
            Program.Start("callbacks", () => Callbacks(200));
            Program.Start("tail call", () => tail(2000000));
            Program.Start("collector", () => Collect(heap));
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Dereference(Node node) { return node.Value; } // hot: Dereference

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Raise(int depth)
        {
            if (depth > 0)
                return Raise(depth - 1) + 1;
            throw new InvalidOperationException("thrown on purpose"); // hot: Raise
        }

        /// Spends its time while the exception is looked at for the first time: its Frame is on the stack meanwhile.
        [MethodImpl(MethodImplOptions.NoInlining)]
        static bool Consider(Exception exception) { return Work.Spin(3000000) != 1 && exception != null; }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Throw()
        {
            try
            {
                return Raise(2);
            }
            catch (InvalidOperationException exception) when (Consider(exception))
            {
                return 7;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Fault()
        {
            try
            {
                return Dereference(null);
            }
            catch (NullReferenceException exception) when (Consider(exception))
            {
                return 8;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Leaf(int n) { return n * 31 + 7; }

        /// Returns all the time: where a collection begins, the runtime replaces a return address to stop the thread.
        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Calls(int rounds)
        {
            int sum = 0;
            for (int i = 0; i < rounds; i++)
                sum = Leaf(sum + i); // hot: Calls
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static Node Tree(int depth)
        {
            return new Node { Value = depth, Left = depth > 0 ? Tree(depth - 1) : null, Right = depth > 0 ? Tree(depth - 1) : null };
        }

        /// Managed, native, managed … most of the time.
        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Callbacks(int rounds)
        {
            int sum = 0;
            for (int i = 0; i < rounds; i++)
                sum += Work.Down(3); // hot: Callbacks
            return sum;
        }

        /// A collection that takes a while, for there is much to mark; then a pause, in which the others work.
        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Collect(Node heap)
        {
            GC.Collect();
            Thread.Sleep(20);
            return heap.Value;
        }

        /// int TailCaller(int x) { return Spin(x); }, with an explicit tail call: Spin returns to TailCaller's caller.
        static Func<int, int> MakeTailCaller()
        {
            MethodInfo spin = new Func<int, int>(Work.Spin).Method;
            DynamicMethod made = new DynamicMethod("TailCaller", typeof(int), new Type[] { typeof(int) }, typeof(Work).Module, true);
            ILGenerator il = made.GetILGenerator();
            il.Emit(OpCodes.Ldarg_0);
            il.Emit(OpCodes.Tailcall);
            il.Emit(OpCodes.Call, spin);
            il.Emit(OpCodes.Ret);
            return (Func<int, int>)made.CreateDelegate(typeof(Func<int, int>));
        }
    }
}
