// Time spent in the framework's own precompiled code and in large methods of ours: sorting, LINQ, formatting, parsing, decimals.
// CPU-bound; `framework.dll SECONDS`.
using System;
using System.Collections.Generic;
using System.Linq;
using System.Text;
using System.Threading;
using Mixed;

namespace Framework
{
    class Ordinal : IComparer<string>
    {
        public int Compare(string a, string b) { return string.CompareOrdinal(a, b); }
    }

    static class Program
    {
        static volatile bool over;

        static int Round(int i)
        {
            var list = new List<string>();
            for (int k = 0; k < 60; k++) list.Add((k * 7919 % 61).ToString("D4") + "x" + i);
            list.Sort(new Ordinal());
            var groups = list.Where(x => x.Length > 3).Select(x => x.Substring(1, 3)).GroupBy(x => x[0])
                .OrderBy(g => g.Key).ToDictionary(g => g.Key, g => g.Count());
            var sorted = new SortedDictionary<string, int>(new Ordinal());
            foreach (var x in list) sorted[x] = x.Length;
            var text = new StringBuilder();
            foreach (var pair in sorted) text.AppendFormat("{0}:{1:N2};", pair.Key, pair.Value * 1.5m);
            var parts = text.ToString().Split(';');
            decimal sum = 1.1m;
            for (int k = 0; k < 20; k++) sum = decimal.Multiply(sum, 1.0001m) + decimal.Parse("1.5");
            DateTime day = new DateTime(2020, 1, 1).AddDays(i % 1000);
            var written = day.ToString("yyyy-MM-dd HH:mm:ss");
            var read = DateTime.ParseExact(written, "yyyy-MM-dd HH:mm:ss", null);
            var letters = new HashSet<string>(StringComparer.OrdinalIgnoreCase);
            foreach (var c in written) letters.Add(c.ToString());
            int encoded = Convert.ToBase64String(Encoding.UTF8.GetBytes(written)).Length;
            return groups.Count + parts.Length + (int)sum + read.Day + letters.Count + encoded;
        }

        static int Main(string[] arguments)
        {
            for (int t = 0; t < 3; t++)
            {
                int first = t;
                var thread = new Thread(() => { for (int i = first; !over; i++) Round(i); });
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
