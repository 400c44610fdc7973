//! The offsets of [`stk_schema::layout`] against public headers: a C file of `_Static_assert`s,
//! written from the numbers and compiled for each architecture. Needs the Windows compilers that
//! `tests/setup/setup.sh` installs, hence its name.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use stk_schema::Arch;
use stk_schema::layout::{BITS32, BITS64, ContextLayout, Layout, context};

/// Each C expression with the number that the recorder uses for it.
fn assertions(arch: Arch) -> Vec<(String, usize)> {
    let layout = if arch.pointer_size() == 8 { BITS64 } else { BITS32 };
    let field = |what: &str, value: usize| {
        let (structure, field) = what.split_once('.').expect("STRUCTURE.field");
        (format!("offsetof({structure}, {field})"), value)
    };
    let size = |structure: &str, value: usize| (format!("sizeof({structure})"), value);
    let Layout {
        teb_stack_base,
        teb_stack_limit,
        teb_self,
        peb_loader_data,
        peb_fast_peb_lock,
        peb_cross_process_flags,
        peb_loader_lock,
        loader_initialized,
        loader_list,
        loader_entry_in_progress,
        entry_base,
        entry_point,
        entry_size,
        entry_name_len,
        entry_name,
        entry_read,
        entry_base_name,
        entry_flags,
        section_owner,
        section_size,
        thread_teb,
        thread_id,
        thread_size,
        string_text,
        notification_name,
        notification_base,
        notification_size,
        ..
    } = layout;
    let mut all = vec![
        field("NT_TIB.StackBase", teb_stack_base),
        field("NT_TIB.StackLimit", teb_stack_limit),
        field("NT_TIB.Self", teb_self),
        field("PHNT_PEB.Ldr", peb_loader_data),
        field("PHNT_PEB.FastPebLock", peb_fast_peb_lock),
        field("PHNT_PEB.CrossProcessFlags", peb_cross_process_flags),
        field("PHNT_PEB.LoaderLock", peb_loader_lock),
        field("PHNT_PEB_LDR_DATA.Initialized", loader_initialized),
        field("PHNT_PEB_LDR_DATA.EntryInProgress", loader_entry_in_progress),
        field("PHNT_PEB_LDR_DATA.InLoadOrderModuleList", loader_list),
        field("PHNT_LDR_DATA_TABLE_ENTRY.DllBase", entry_base),
        field("PHNT_LDR_DATA_TABLE_ENTRY.EntryPoint", entry_point),
        field("PHNT_LDR_DATA_TABLE_ENTRY.SizeOfImage", entry_size),
        field("PHNT_LDR_DATA_TABLE_ENTRY.FullDllName.Length", entry_name_len),
        field("PHNT_LDR_DATA_TABLE_ENTRY.FullDllName.Buffer", entry_name),
        field("PHNT_LDR_DATA_TABLE_ENTRY.BaseDllName", entry_read),
        field("PHNT_LDR_DATA_TABLE_ENTRY.BaseDllName", entry_base_name),
        field("PHNT_LDR_DATA_TABLE_ENTRY.Flags", entry_flags),
        field("RTL_CRITICAL_SECTION.OwningThread", section_owner),
        size("RTL_CRITICAL_SECTION", section_size),
        field("PHNT_THREAD_BASIC_INFORMATION.TebBaseAddress", thread_teb),
        field("PHNT_THREAD_BASIC_INFORMATION.ClientId.UniqueThread", thread_id),
        size("PHNT_THREAD_BASIC_INFORMATION", thread_size),
        field("UNICODE_STRING.Buffer", string_text),
        field("LDR_DLL_NOTIFICATION.FullDllName", notification_name),
        field("LDR_DLL_NOTIFICATION.DllBase", notification_base),
        field("LDR_DLL_NOTIFICATION.SizeOfImage", notification_size),
    ];
    let names = match arch {
        Arch::X64 => ["Rip", "Rsp", "Rax", "Rbp"],
        Arch::Arm64 => ["Pc", "Sp", "X", "Fp"],
        Arch::X86 => ["Eip", "Esp", "Edi", "Ebp"],
    };
    let ContextLayout { flags, ip, sp, first, frame, size: bytes, request, .. } = context(arch);
    all.push(field("CONTEXT.ContextFlags", flags));
    for (name, offset) in names.into_iter().zip([ip, sp, first, frame]) {
        all.push(field(&format!("CONTEXT.{name}"), offset));
    }
    all.push(size("CONTEXT", bytes));
    let groups = match arch {
        Arch::Arm64 => "CONTEXT_CONTROL | CONTEXT_INTEGER | CONTEXT_FLOATING_POINT",
        Arch::X64 | Arch::X86 => "CONTEXT_CONTROL | CONTEXT_INTEGER",
    };
    all.push((format!("({groups})"), request as usize));
    all
}

fn c_file(all: &[(String, usize)]) -> String {
    let mut text = "#include \"layouts.h\"\n".to_owned();
    for (expression, value) in all {
        let _ = writeln!(text, "_Static_assert({expression} == {value:#x}, \"{expression}\");");
    }
    text
}

/// Compiles `text` for `arch`. On failure, returns the compiler's messages.
fn compile(arch: Arch, name: &str, text: &str) -> Result<(), String> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("layouts-{}-{name}.c", arch.name()));
    fs::write(&file, text).expect("the test's own folder is writable");
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schema/tests");
    let mut compiler = match arch {
        Arch::X64 => Command::new("x86_64-w64-mingw32-gcc"),
        Arch::X86 => Command::new("i686-w64-mingw32-gcc"),
        Arch::Arm64 => {
            // Debian has no mingw compiler for arm64, but mingw-w64's headers serve every
            // architecture.
            let mut clang = Command::new("clang-19");
            clang.args(["--target=aarch64-w64-mingw32", "-ferror-limit=0"]);
            clang.args(["-isystem", "/usr/share/mingw-w64/include"]);
            clang
        }
    };
    compiler.args(["-std=c11", "-fsyntax-only", "-D_WIN32_WINNT=0x0A00", "-I"]).arg(headers).arg(&file);
    let output = compiler.output().unwrap_or_else(|error| {
        panic!("{} cannot be run ({error}): run tests/setup/setup.sh", compiler.get_program().display())
    });
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

#[test]
fn offsets_are_those_of_the_public_headers_on_three_architectures() {
    for arch in [Arch::X64, Arch::X86, Arch::Arm64] {
        compile(arch, "all", &c_file(&assertions(arch)))
            .unwrap_or_else(|said| panic!("{}:\n{said}", arch.name()));
    }
}

#[test]
fn wrong_offsets_do_not_compile() {
    // An assertion must not hold for every number, so each is compiled with its number raised by 4.
    for arch in [Arch::X64, Arch::X86, Arch::Arm64] {
        let wrong: Vec<_> = assertions(arch).into_iter().map(|(what, value)| (what, value + 4)).collect();
        let said = compile(arch, "wrong", &c_file(&wrong)).expect_err("wrong numbers must not compile");
        for (what, _) in &wrong {
            assert!(said.contains(&format!("\"{what}\"")), "{}: {what} is not found wrong", arch.name());
        }
    }
}
