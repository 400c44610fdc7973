//! Gives inject.exe its version information, its manifest, and `inject --version` its commit.

#[path = "../../build/commit.rs"]
mod commit;
#[path = "../../build/resources.rs"]
mod resources;

/// What inject is built from.
const SOURCES: [&str; 5] =
    ["cli/inject/src", "cli/inject/Cargo.toml", "format/src", "schema/src", "Cargo.lock"];

/// The manifest requests no elevation, no redirection of files under Program Files, long paths,
/// UTF-8 as the code page, and Windows' true version (the id is that of Windows 10 and 11).
const MANIFEST: &str = r#"<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<assembly xmlns="urn:schemas-microsoft-com:asm.v1" manifestVersion="1.0">
  <trustInfo xmlns="urn:schemas-microsoft-com:asm.v3">
    <security>
      <requestedPrivileges>
        <requestedExecutionLevel level="asInvoker" uiAccess="false"/>
      </requestedPrivileges>
    </security>
  </trustInfo>
  <compatibility xmlns="urn:schemas-microsoft-com:compatibility.v1">
    <application>
      <supportedOS Id="{8e0f7a12-bfb3-4fe8-b9a5-48fd50a15a9a}"/>
    </application>
  </compatibility>
  <application xmlns="urn:schemas-microsoft-com:asm.v3">
    <windowsSettings>
      <longPathAware xmlns="http://schemas.microsoft.com/SMI/2016/WindowsSettings">true</longPathAware>
      <activeCodePage xmlns="http://schemas.microsoft.com/SMI/2019/WindowsSettings">UTF-8</activeCodePage>
    </windowsSettings>
  </application>
</assembly>
"#;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../build/commit.rs");
    println!("cargo::rerun-if-changed=../../build/resources.rs");
    commit::emit(std::path::Path::new("../.."), &SOURCES);
    let x86 = std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86");
    let object = resources::object(&resources::About {
        description: "stk: records the stacks of running programs",
        file: if x86 { "inject32.exe" } else { "inject.exe" },
        dll: false,
        manifest: Some(MANIFEST),
    });
    if let Some(object) = object {
        println!("cargo::rustc-link-arg-bins={}", object.display());
    }
}
