// A C# program that captures, marks and names itself while inject records it, by the functions of
// agent.dll (agent/include/stk_agent.h). The agent is in the process then, so its file name alone
// finds it; without a recording a call throws DllNotFoundException.
using System;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;

namespace Capturing
{
    /// <summary>The functions of the agent.</summary>
    public static class Stk
    {
#if X86
        const string Agent = "agent32.dll";
#else
        const string Agent = "agent.dll";
#endif
        /// <summary>Records this thread's stack with a tag. 0: recorded; 1: nothing is being recorded.</summary>
        [DllImport(Agent, EntryPoint = "stk_capture")]
        public static extern uint Capture(ulong tag);

        [DllImport(Agent)]
        static extern uint stk_mark(byte[] text);

        [DllImport(Agent)]
        static extern uint stk_thread_name(byte[] name);

        /// <summary>Marks this moment. Results as of Capture.</summary>
        public static uint Mark(string text) { return stk_mark(Utf8(text)); }

        /// <summary>Names this thread.</summary>
        public static uint NameThread(string name) { return stk_thread_name(Utf8(name)); }

        /// <summary>UTF-8 with a zero behind it.</summary>
        static byte[] Utf8(string text)
        {
            var bytes = new byte[4 * text.Length + 1];
            int at = 0;
            for (int i = 0; i < text.Length; i++)
            {
                int point = text[i];
                if (char.IsHighSurrogate(text[i]) && i + 1 < text.Length) point = char.ConvertToUtf32(text[i], text[++i]);
                if (point < 0x80) bytes[at++] = (byte)point;
                else if (point < 0x800)
                {
                    bytes[at++] = (byte)(0xC0 | point >> 6);
                    bytes[at++] = (byte)(0x80 | point & 0x3F);
                }
                else if (point < 0x10000)
                {
                    bytes[at++] = (byte)(0xE0 | point >> 12);
                    bytes[at++] = (byte)(0x80 | point >> 6 & 0x3F);
                    bytes[at++] = (byte)(0x80 | point & 0x3F);
                }
                else
                {
                    bytes[at++] = (byte)(0xF0 | point >> 18);
                    bytes[at++] = (byte)(0x80 | point >> 12 & 0x3F);
                    bytes[at++] = (byte)(0x80 | point >> 6 & 0x3F);
                    bytes[at++] = (byte)(0x80 | point & 0x3F);
                }
            }
            return bytes;
        }
    }

    public static class Program
    {
        [DllImport("kernel32.dll")]
        static extern int GetCurrentProcessId();

        [MethodImpl(MethodImplOptions.NoInlining)]
        static uint Inner(ulong tag) { return Stk.Capture(tag) + Nothing(); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static uint Outer(ulong tag) { return Inner(tag) + Nothing(); }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static uint Nothing() { return 0; }

        /// Twenty captures, one each 100 ms once a recording runs; gives up after a minute.
        static int Main()
        {
            Console.WriteLine("pid " + GetCurrentProcessId());
            Console.WriteLine("ready");
            uint taken = 0, marks = 0, named = 0;
            for (ulong tag = 1; tag <= 600 && taken < 20; tag++)
            {
                Thread.Sleep(100);
                try
                {
                    if (named == 0 && Stk.NameThread("C# \u00e4") == 0) named = 1;
                    if (Outer(tag) == 0) taken++;
                    if (taken == 5 && marks == 0 && Stk.Mark("f\u00fcnf") == 0) marks++;
                }
                catch (DllNotFoundException) { } // nothing is being recorded yet
            }
            // In a 32-bit process inject finds the names of methods, once a second.
            Thread.Sleep(8000);
            Console.WriteLine("taken " + taken + " marks " + marks + " named " + named);
            return taken == 20 && marks == 1 && named == 1 ? 0 : 1;
        }
    }
}
