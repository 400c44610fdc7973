// Resources of a Windows program or DLL for build scripts: version information and a manifest, as a
// COFF object that every linker takes (the PE/COFF specification, "The .rsrc Section";
// "VS_VERSIONINFO"). Written here because resource compilers differ: windres, llvm-rc and rc.exe
// each lie somewhere else, where they are there at all.

use std::env;
use std::fs;
use std::path::PathBuf;

/// What the version information says; the version is the package's.
pub(crate) struct About {
    /// FileDescription.
    pub description: &'static str,
    /// OriginalFilename.
    pub file: &'static str,
    /// Whether it is a DLL.
    pub dll: bool,
    /// RT_MANIFEST, XML.
    pub manifest: Option<&'static str>,
}

const RT_VERSION: u32 = 16;
const RT_MANIFEST: u32 = 24;
const US_ENGLISH: u32 = 0x409;

/// Writes the object into OUT_DIR; `None` where the target is not Windows or of an unknown
/// processor.
pub(crate) fn object(about: &About) -> Option<PathBuf> {
    if variable("CARGO_CFG_TARGET_OS") != "windows" {
        return None;
    }
    // IMAGE_FILE_MACHINE_* and the relocation to an RVA.
    let (machine, rva) = match variable("CARGO_CFG_TARGET_ARCH").as_str() {
        "x86_64" => (0x8664u16, 3u16), // IMAGE_REL_AMD64_ADDR32NB
        "x86" => (0x14c, 7),           // IMAGE_REL_I386_DIR32NB
        "aarch64" => (0xaa64, 2),      // IMAGE_REL_ARM64_ADDR32NB
        _ => return None,
    };
    let mut resources = vec![(RT_VERSION, version_info(about))];
    resources.extend(about.manifest.map(|text| (RT_MANIFEST, text.as_bytes().to_vec())));
    let (section, relocations) = tree(&resources);
    let path = PathBuf::from(variable("OUT_DIR")).join("resources.o");
    fs::write(&path, coff(machine, rva, &section, &relocations))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Some(path)
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: this runs in a build script"))
}

/// The `.rsrc` section: three levels of folders (type, id, language), an entry for each resource,
/// the data. With it, the offsets of words that hold an offset in the section and must become RVAs.
fn tree(resources: &[(u32, Vec<u8>)]) -> (Vec<u8>, Vec<u32>) {
    const FOLDER: u32 = 16;
    const LINK: u32 = 8;
    const IS_FOLDER: u32 = 0x8000_0000;
    let count = resources.len() as u32;
    let ids = FOLDER + count * LINK;
    let languages = ids + count * (FOLDER + LINK);
    let entries = languages + count * (FOLDER + LINK);
    let folder = |section: &mut Vec<u8>, links: u32| {
        section.extend([0; 14]); // Characteristics, TimeDateStamp, versions, NumberOfNamedEntries
        section.extend((links as u16).to_le_bytes());
    };
    let link = |section: &mut Vec<u8>, id: u32, to: u32| {
        section.extend(id.to_le_bytes());
        section.extend(to.to_le_bytes());
    };
    let mut section = Vec::new();
    folder(&mut section, count);
    for (index, (kind, _)) in (0..).zip(resources) {
        link(&mut section, *kind, IS_FOLDER | (ids + index * (FOLDER + LINK)));
    }
    for index in 0..count {
        folder(&mut section, 1);
        link(&mut section, 1, IS_FOLDER | (languages + index * (FOLDER + LINK)));
    }
    for index in 0..count {
        folder(&mut section, 1);
        link(&mut section, US_ENGLISH, entries + index * 16);
    }
    let mut data_at = entries + count * 16;
    let mut relocations = Vec::new();
    for (_, data) in resources {
        relocations.push(section.len() as u32);
        for word in [data_at, data.len() as u32, 0, 0] {
            section.extend(word.to_le_bytes());
        }
        data_at += data.len().next_multiple_of(8) as u32;
    }
    for (_, data) in resources {
        section.extend(data);
        section.resize(section.len() + data.len().next_multiple_of(8) - data.len(), 0);
    }
    (section, relocations)
}

fn coff(machine: u16, rva: u16, section: &[u8], relocations: &[u32]) -> Vec<u8> {
    const HEADERS: u32 = 20 + 40;
    const CHARACTERISTICS: u32 = 0x4000_0040 | 0x0040_0000; // readable initialised data, aligned to 8
    let safe_seh = machine == 0x14c;
    let relocations_at = HEADERS + section.len() as u32;
    let symbols_at = relocations_at + relocations.len() as u32 * 10;
    let mut out = Vec::new();
    out.extend(machine.to_le_bytes());
    out.extend(1u16.to_le_bytes()); // NumberOfSections
    out.extend(0u32.to_le_bytes());
    out.extend(symbols_at.to_le_bytes());
    out.extend((1 + u32::from(safe_seh)).to_le_bytes());
    out.extend([0; 4]); // SizeOfOptionalHeader, Characteristics

    out.extend(b".rsrc\0\0\0");
    for word in [0, 0, section.len() as u32, HEADERS, relocations_at, 0] {
        out.extend(word.to_le_bytes());
    }
    out.extend((relocations.len() as u16).to_le_bytes());
    out.extend(0u16.to_le_bytes());
    out.extend(CHARACTERISTICS.to_le_bytes());

    out.extend(section);
    for at in relocations {
        out.extend(at.to_le_bytes());
        out.extend(0u32.to_le_bytes()); // the symbol of the section
        out.extend(rva.to_le_bytes());
    }
    let mut symbol = |name: &[u8; 8], value: u32, section: i16| {
        out.extend(name);
        out.extend(value.to_le_bytes());
        out.extend(section.to_le_bytes());
        out.extend([0, 0, 3, 0]); // Type, IMAGE_SYM_CLASS_STATIC, no auxiliary symbols
    };
    symbol(b".rsrc\0\0\0", 0, 1);
    if safe_seh {
        symbol(b"@feat.00", 1, -1); // Without code there is no exception handler that is not registered.
    }
    out.extend(4u32.to_le_bytes()); // The string table is empty.
    out
}

fn version_info(about: &About) -> Vec<u8> {
    let version = variable("CARGO_PKG_VERSION");
    let number = |name: &str| variable(name).parse::<u32>().unwrap_or(0);
    let high = number("CARGO_PKG_VERSION_MAJOR") << 16 | number("CARGO_PKG_VERSION_MINOR");
    let low = number("CARGO_PKG_VERSION_PATCH") << 16;
    let kind = if about.dll { 2 } else { 1 }; // VFT_DLL, VFT_APP
    // VS_FIXEDFILEINFO; 0x40004 is VOS_NT_WINDOWS32.
    let fixed = [0xfeef_04bd, 0x1_0000, high, low, high, low, 0x3f, 0, 0x4_0004, kind, 0, 0, 0];
    let fixed: Vec<u8> = fixed.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    let texts = [
        ("CompanyName", variable("CARGO_PKG_REPOSITORY")),
        ("FileDescription", about.description.to_owned()),
        ("FileVersion", version.clone()),
        ("InternalName", about.file.to_owned()),
        ("LegalCopyright", format!("Licence: {}", variable("CARGO_PKG_LICENSE"))),
        ("OriginalFilename", about.file.to_owned()),
        ("ProductName", "stk".to_owned()),
        ("ProductVersion", version),
    ];
    let texts: Vec<Vec<u8>> = texts.iter().map(|(key, text)| block(key, Value::Text(text), &[])).collect();
    let table = block("040904b0", Value::None, &texts); // US English, UTF-16
    let translation = block("Translation", Value::Bytes(&[0x09, 0x04, 0xb0, 0x04]), &[]);
    let children =
        [block("StringFileInfo", Value::None, &[table]), block("VarFileInfo", Value::None, &[translation])];
    block("VS_VERSION_INFO", Value::Bytes(&fixed), &children)
}

enum Value<'a> {
    None,
    Bytes(&'a [u8]),
    Text(&'a str),
}

/// wLength, wValueLength, wType, szKey, Value, Children; the parts are aligned to 4 bytes.
fn block(key: &str, value: Value, children: &[Vec<u8>]) -> Vec<u8> {
    let wide = |text: &str| text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let align = |out: &mut Vec<u8>| out.resize(out.len().next_multiple_of(4), 0);
    // A text's length is in characters.
    let (bytes, length, is_text) = match value {
        Value::None => (Vec::new(), 0, 1u16),
        Value::Bytes(bytes) => (bytes.to_vec(), bytes.len(), 0),
        Value::Text(text) => (wide(text), wide(text).len() / 2, 1),
    };
    let mut out = vec![0; 2];
    out.extend((length as u16).to_le_bytes());
    out.extend(is_text.to_le_bytes());
    out.extend(wide(key));
    align(&mut out);
    out.extend(bytes);
    for child in children {
        align(&mut out);
        out.extend(child);
    }
    let len = out.len() as u16;
    out[..2].copy_from_slice(&len.to_le_bytes());
    out
}
