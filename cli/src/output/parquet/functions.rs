//! Whose code a function is.

use crate::profile::{FrameKind, is_system_library};

/// Beginnings of the names of .NET's own assemblies.
const FRAMEWORK: [&str; 6] = [
    "system.",
    "mscorlib.",
    "netstandard.",
    "microsoft.csharp.",
    "microsoft.visualbasic.",
    "microsoft.win32.",
];

/// Whose code a frame is. `path`: that of its image, if it lies in one.
pub(super) fn category(kind: FrameKind, module: &str, path: &str, function: &str) -> &'static str {
    let module = module.to_ascii_lowercase();
    match kind {
        FrameKind::Runtime if module.starts_with("clrjit") || module.starts_with("mscorjit") => "jit",
        FrameKind::Runtime if module.starts_with("clrgc") || function.contains("gc_heap::") => "gc",
        FrameKind::Runtime | FrameKind::Stub => "runtime",
        FrameKind::Managed if FRAMEWORK.iter().any(|name| module.starts_with(name)) => "framework",
        FrameKind::Managed => "user",
        FrameKind::Native if is_system_library(&module) || in_windows(path) => "system",
        FrameKind::Native => "user",
        FrameKind::Dynamic | FrameKind::Unknown => "unknown",
    }
}

/// Whether a path leads to a file in Windows' own folder.
fn in_windows(path: &str) -> bool {
    let mut parts = path.split(['\\', '/']).skip(1);
    parts.next().is_some_and(|folder| folder.eq_ignore_ascii_case("windows"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_the_users_unless_it_is_known_to_be_anothers() {
        let native = |module, path| category(FrameKind::Native, module, path, "f");
        assert_eq!(native("app.exe", r"C:\app\app.exe"), "user");
        assert_eq!(native("ntdll.dll", ""), "system");
        assert_eq!(native("dwmapi.dll", r"C:\WINDOWS\System32\dwmapi.dll"), "system");
        assert_eq!(native("x.dll", r"C:\app\Windows\x.dll"), "user");
        let runtime = |module, function| category(FrameKind::Runtime, module, "", function);
        assert_eq!(runtime("coreclr.dll", "Thread::Start"), "runtime");
        assert_eq!(runtime("clrjit.dll", "compile"), "jit");
        assert_eq!(runtime("coreclr.dll", "WKS::gc_heap::plan_phase"), "gc");
        let managed = |module| category(FrameKind::Managed, module, "", "f");
        assert_eq!((managed("app.dll"), managed("System.Private.CoreLib.dll")), ("user", "framework"));
        assert_eq!(category(FrameKind::Dynamic, "", "", "f"), "unknown");
    }
}
