//! Whose code a frame is: the program's own, the system's, or a language runtime's.

use super::{FrameKind, is_system_library};

/// Whose code a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Category {
    /// The program's own, or that of a library that it brought along.
    User,
    /// Of the system's libraries.
    System,
    /// Of a language runtime.
    Runtime,
    /// A language runtime's compiler.
    Jit,
    /// A language runtime's garbage collector.
    Gc,
    /// The managed libraries that come with a language runtime.
    Framework,
    /// Not known: made at run time, or in no module.
    Unknown,
}

impl Category {
    /// The category of a frame by its module's file name, the path of its image (empty if it lies
    /// in none) and its function.
    pub fn of(kind: FrameKind, module: &str, path: &str, function: &str) -> Category {
        let module = module.to_ascii_lowercase();
        match kind {
            FrameKind::Runtime if module.starts_with("clrjit") || module.starts_with("mscorjit") => {
                Category::Jit
            }
            FrameKind::Runtime if module.starts_with("clrgc") || function.contains("gc_heap::") => {
                Category::Gc
            }
            FrameKind::Runtime | FrameKind::Stub => Category::Runtime,
            FrameKind::Managed if FRAMEWORK.iter().any(|name| module.starts_with(name)) => {
                Category::Framework
            }
            FrameKind::Managed => Category::User,
            FrameKind::Native if is_system_library(&module) || in_windows(path) => Category::System,
            FrameKind::Native => Category::User,
            FrameKind::Dynamic | FrameKind::Unknown | FrameKind::Placeholder => Category::Unknown,
        }
    }

    /// Short stable name, for outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Category::User => "user",
            Category::System => "system",
            Category::Runtime => "runtime",
            Category::Jit => "jit",
            Category::Gc => "gc",
            Category::Framework => "framework",
            Category::Unknown => "unknown",
        }
    }

    /// Whether it is known to be the code of the system or of a language runtime.
    pub fn is_of_others(self) -> bool {
        !matches!(self, Category::User | Category::Unknown)
    }
}

/// Beginnings of the names of .NET's own assemblies.
const FRAMEWORK: [&str; 6] = [
    "system.",
    "mscorlib.",
    "netstandard.",
    "microsoft.csharp.",
    "microsoft.visualbasic.",
    "microsoft.win32.",
];

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
        let of = |kind, module, path, function| Category::of(kind, module, path, function).as_str();
        let native = |module, path| of(FrameKind::Native, module, path, "f");
        assert_eq!(native("app.exe", r"C:\app\app.exe"), "user");
        assert_eq!(native("ntdll.dll", ""), "system");
        assert_eq!(native("dwmapi.dll", r"C:\WINDOWS\System32\dwmapi.dll"), "system");
        assert_eq!(native("x.dll", r"C:\app\Windows\x.dll"), "user");
        let runtime = |module, function| of(FrameKind::Runtime, module, "", function);
        assert_eq!(runtime("coreclr.dll", "Thread::Start"), "runtime");
        assert_eq!(runtime("clrjit.dll", "compile"), "jit");
        assert_eq!(runtime("coreclr.dll", "WKS::gc_heap::plan_phase"), "gc");
        let managed = |module| of(FrameKind::Managed, module, "", "f");
        assert_eq!((managed("app.dll"), managed("System.Private.CoreLib.dll")), ("user", "framework"));
        assert_eq!(of(FrameKind::Dynamic, "", "", "f"), "unknown");
    }

    #[test]
    fn code_that_nothing_is_known_of_is_not_taken_for_anothers() {
        let mine = [Category::User, Category::Unknown];
        let others = [Category::System, Category::Runtime, Category::Jit, Category::Gc, Category::Framework];
        assert!(mine.iter().all(|category| !category.is_of_others()));
        assert!(others.iter().all(|category| category.is_of_others()));
    }
}
