// Source of lines.pdb and lines.dll (tests/data/dotnet/README.md). What line a test expects stands in this text.
using System;
using System.Collections.Generic;
using System.Threading.Tasks;

namespace Lines
{
    public class Simple
    {
        public int Field = 7;

        public static int Add(int a, int b)
        {
            int sum = a;
            sum += b;

            return sum;
        }

        public static int Loop(IEnumerable<string> texts)
        {
            int length = 0;
            foreach (string text in texts)
            {
                if (text == null)
                    continue;
                length += text.Length;
            }
            return length;
        }

        public static string Choose(string key)
        {
            switch (key)
            {
                case "one": return "1";
                case "two": return "2";
                case "three": return "3";
                case "four": return "4";
                case "five": return "5";
                case "six": return "6";
                case "seven": return "7";
                default: return "";
            }
        }

        public static int Several(int n)
        {
            int result = n;
#line 1000 "generated/first.txt"
            result += 1;
#line 2000 "generated/second.txt"
            result += 2;
#line hidden
            result += 3;
#line default
            return result;
        }

        public static async Task<int> Later(int n)
        {
            await Task.Yield();
            int half = n / 2;
            try
            {
                await Task.Delay(half);
            }
            finally
            {
                half++;
            }
            return half;
        }

        public static Func<int, int> Made(int by) =>
            n => n * by;
    }
}
