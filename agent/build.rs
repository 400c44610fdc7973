//! Gives agent.dll its version information.

#[path = "../build/resources.rs"]
mod resources;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../build/resources.rs");
    if std::env::var_os("CARGO_FEATURE_RECORDER").is_none() {
        return;
    }
    let x86 = std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86");
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
