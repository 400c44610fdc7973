// Prints the sequence points of a portable PDB as System.Reflection.Metadata reads them: an oracle for stk's reader.
using System;
using System.IO;
using System.Reflection.Metadata;
using System.Reflection.Metadata.Ecma335;
class Dump {
  static void Main(string[] a) {
    using (var p = MetadataReaderProvider.FromPortablePdbStream(File.OpenRead(a[0]))) {
      var r = p.GetMetadataReader(); var o = Console.Out;
      o.Write("guid " + new BlobContentId(r.DebugMetadataHeader.Id).Guid + "\n");
      foreach (var h in r.MethodDebugInformation) {
        var m = r.GetMethodDebugInformation(h);
        o.Write("method " + MetadataTokens.GetToken(h.ToDefinitionHandle()).ToString("x8") + "\n");
        foreach (var s in m.GetSequencePoints())
          if (s.IsHidden) o.Write("  " + s.Offset + " hidden\n"); else o.Write("  " + s.Offset + " " + s.StartLine + " " + r.GetString(r.GetDocument(s.Document).Name) + "\n");
      }
    }
  }
}
