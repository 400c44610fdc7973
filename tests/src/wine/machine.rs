//! The machines on which the tests run Windows programs.

use super::path;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use stk_schema::Arch;

/// A Windows system or a Wine.
///
/// Tests that are built for Windows run programs on the Windows that runs the tests. Others use the
/// Wine that `STK_MACHINE` names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Machine {
    /// Debian 12's Wine, x64, and a 32-bit one in a prefix of its own.
    Wine8,
    /// Debian 13's Wine, x64 and x86 in one prefix.
    Wine10,
    /// Debian 13's Wine for arm64, emulated.
    Arm64,
    /// The Windows that runs this test.
    Native,
}

impl Machine {
    /// The machine of this run.
    ///
    /// # Panics
    /// If `STK_MACHINE` is not one of tests/README.md. Unset means `wine8`.
    pub fn current() -> Machine {
        if cfg!(windows) {
            return Machine::Native;
        }
        match std::env::var("STK_MACHINE").as_deref() {
            Ok("wine8") | Err(std::env::VarError::NotPresent) => Machine::Wine8,
            Ok("wine10") => Machine::Wine10,
            Ok("arm64") => Machine::Arm64,
            other => panic!("STK_MACHINE is {other:?}: tests/README.md lists the machines"),
        }
    }

    /// Its word in `STK_MACHINE`; that of the Windows that runs this test is `native`.
    pub fn name(self) -> &'static str {
        match self {
            Machine::Wine8 => "wine8",
            Machine::Wine10 => "wine10",
            Machine::Arm64 => "arm64",
            Machine::Native => "native",
        }
    }

    /// The machine's own folder below `folder`, because two machines are tested at once. Makes it
    /// if it is missing.
    pub fn folder(self, folder: &Path) -> PathBuf {
        let folder = folder.join(self.name());
        std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        folder
    }

    /// Whether every instruction of its programs is emulated, so that threads are slow.
    pub fn is_emulated(self) -> bool {
        self == Machine::Arm64
    }

    /// The architecture of its programs, if they are not 32-bit.
    pub fn arch(self) -> Arch {
        match self {
            Machine::Wine8 | Machine::Wine10 => Arch::X64,
            Machine::Arm64 => Arch::Arm64,
            Machine::Native if cfg!(target_arch = "aarch64") => Arch::Arm64,
            Machine::Native => Arch::X64,
        }
    }

    /// Whether 64-bit and 32-bit programs see each other.
    pub fn has_both_widths(self) -> bool {
        matches!(self, Machine::Wine10 | Machine::Native)
    }

    /// Whether a program started by [`Machine::command`] is not the child itself: Debian's 64-bit
    /// loader of Wine 10 has a helper start 32-bit programs, and waits.
    pub fn has_substitute(self, program: &Path) -> bool {
        self == Machine::Wine10 && is_x86(program)
    }

    /// A command that runs a program, with nothing to read.
    pub fn command(self, program: &Path) -> Command {
        let mut command = match self {
            Machine::Native => Command::new(program),
            // If a 32-bit program cannot run in the prefix of the others, there are two loaders.
            _ => {
                let loader = if is_x86(program) { "STK_WINE32" } else { "STK_WINE" };
                let mut command = Command::new(path(loader));
                command.arg(program);
                command
            }
        };
        own_group(&mut command);
        command.stdin(Stdio::null());
        command
    }

    /// The same path as Windows programs see it.
    pub fn windows_path(self, path: &Path) -> String {
        match self {
            Machine::Native => path.display().to_string().replace('/', "\\"),
            _ => format!("Z:{}", path.display()).replace('/', "\\"),
        }
    }

    /// Ctrl-C for a program that [`Machine::command`] started; false if it could not be sent.
    /// Natively it is Ctrl-Break, because Ctrl-C cannot be sent to a single program.
    pub fn interrupt(self, child: &Child) -> bool {
        interrupt(child)
    }

    /// The folder with the image files of 32-bit system DLLs.
    pub fn x86_system(self) -> PathBuf {
        match self {
            Machine::Wine10 => path("STK_WINE10_DIR").join("root/usr/lib/x86_64-linux-gnu/wine/i386-windows"),
            Machine::Native => PathBuf::from(r"C:\Windows\SysWOW64"),
            _ => path("STK_WINE32_DIR").join("root/usr/lib/i386-linux-gnu/wine/i386-windows"),
        }
    }
}

/// Whether a file is a 32-bit x86 program or DLL.
fn is_x86(program: &Path) -> bool {
    // Wine's own programs are named without a folder. These are the 64-bit prefix's.
    let Ok(bytes) = std::fs::read(program) else { return false };
    matches!(object::FileKind::parse(&*bytes), Ok(object::FileKind::Pe32))
}

#[cfg(windows)]
fn own_group(command: &mut Command) {
    use std::os::windows::process::CommandExt as _;
    const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
    command.creation_flags(CREATE_NEW_PROCESS_GROUP);
}

#[cfg(not(windows))]
fn own_group(_: &mut Command) {}

#[cfg(windows)]
fn interrupt(child: &Child) -> bool {
    use windows_sys::Win32::System::Console::{CTRL_BREAK_EVENT, GenerateConsoleCtrlEvent};
    // SAFETY: the call takes no pointers.
    unsafe { GenerateConsoleCtrlEvent(CTRL_BREAK_EVENT, child.id()) != 0 }
}

#[cfg(not(windows))]
fn interrupt(child: &Child) -> bool {
    signal(child, "INT")
}

/// Sends a Linux process a signal, by the name that kill(1) knows; false if that failed.
#[cfg(not(windows))]
pub(super) fn signal(child: &Child, name: &str) -> bool {
    let arguments = [format!("-{name}"), child.id().to_string()];
    let status = Command::new("kill").args(arguments).stdout(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
