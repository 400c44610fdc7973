//! Gives agent.dll its version information, and DllMain itself as its entry: no C runtime runs
//! before it.

#[path = "../build/resources.rs"]
mod resources;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../build/resources.rs");
    if std::env::var_os("CARGO_FEATURE_RECORDER").is_none() {
        return;
    }
    let has = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|found| found == value);
    let x86 = has("CARGO_CFG_TARGET_ARCH", "x86");
    let arguments: &[&str] = match () {
        _ if !has("CARGO_CFG_TARGET_OS", "windows") => &[],
        _ if has("CARGO_CFG_TARGET_ENV", "msvc") => &["/ENTRY:DllMain", "/NODEFAULTLIB"],
        // zig's driver knows no -nostartfiles.
        _ if has("CARGO_CFG_TARGET_ABI", "llvm") => &["-nostdlib", "-Wl,--entry=DllMain"],
        _ if x86 => &["-nostartfiles", "-Wl,--entry=_DllMain@12"],
        _ => &["-nostartfiles", "-Wl,--entry=DllMain"],
    };
    for argument in arguments {
        println!("cargo::rustc-link-arg-cdylib={argument}");
    }
    let object = resources::object(&resources::About {
        description: "stk: records the stacks of the program that has loaded it",
        file: if x86 { "agent32.dll" } else { "agent.dll" },
        dll: true,
        manifest: None,
    });
    if let Some(object) = object {
        println!("cargo::rustc-link-arg-cdylib={}", object.display());
    }
}
