//! What the built agent.dll brings into a target.

use object::read::pe::{ImageNtHeaders, PeFile64};
use std::collections::BTreeSet;
use stk_schema::Arch;
use stk_tests::wine::{self, Machine};

fn agent() -> Vec<u8> {
    let path = wine::path("STK_WINDOWS_BIN").join("agent.dll");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every DLL that it imports is loaded into the target with it; only those that every process has anyway are welcome.
#[test]
fn it_imports_from_kernel32_ntdll_and_the_c_runtime_only() {
    let bytes = agent();
    let file = PeFile64::parse(&*bytes).expect("agent.dll is a PE image");
    let table = file.import_table().expect("its import table can be read").expect("it has one");
    let mut imported = BTreeSet::new();
    let mut descriptors = table.descriptors().expect("descriptors");
    while let Some(descriptor) = descriptors.next().expect("a descriptor") {
        let name = table.name(descriptor.name.get(object::LittleEndian)).expect("a name");
        imported.insert(String::from_utf8_lossy(name).to_ascii_lowercase());
    }
    let welcome = |name: &str| {
        ["kernel32.dll", "ntdll.dll", "msvcrt.dll", "ucrtbase.dll"].contains(&name)
            || name.starts_with("vcruntime")
            || name.starts_with("api-ms-win-crt-")
    };
    let others: Vec<&String> = imported.iter().filter(|name| !welcome(name)).collect();
    assert!(others.is_empty(), "agent.dll imports from {others:?}");
    assert!(imported.contains("kernel32.dll"), "no imports were found: {imported:?}");
    let directories = file.data_directories();
    let delayed = directories.get(object::pe::IMAGE_DIRECTORY_ENTRY_DELAY_IMPORT);
    assert!(delayed.is_none_or(|directory| directory.size.get(object::LittleEndian) == 0), "delayed imports");
}

#[test]
fn it_exports_the_four_documented_functions_and_no_other_of_its_own() {
    let bytes = agent();
    let file = PeFile64::parse(&*bytes).expect("agent.dll is a PE image");
    let machine = file.nt_headers().file_header().machine.get(object::LittleEndian);
    let expected = match Machine::current().arch() {
        Arch::Arm64 => object::pe::IMAGE_FILE_MACHINE_ARM64,
        _ => object::pe::IMAGE_FILE_MACHINE_AMD64,
    };
    assert_eq!(machine, expected);
    let table = file.export_table().expect("its export table can be read").expect("it has one");
    let mut names: BTreeSet<String> = table
        .name_iter()
        .map(|(pointer, _)| {
            String::from_utf8_lossy(table.name_from_pointer(pointer).expect("a name")).into_owned()
        })
        .collect();
    // GNU ld exports whatever has an unmangled name, these two of necessity.
    names.retain(|name| name != "DllMain" && name != "rust_eh_personality");
    let documented = ["stk_agent_start", "stk_agent_status", "stk_agent_stop", "stk_capture"];
    assert_eq!(names, documented.map(str::to_owned).into());
}
