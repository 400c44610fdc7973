//! Tests against PDBs of the C# compiler, whose sequence points System.Reflection.Metadata listed
//! (tests/data/dotnet).

use super::*;

const PDB: &[u8] = include_bytes!("../../../../tests/data/dotnet/lines.pdb");
const ASSEMBLY: &[u8] = include_bytes!("../../../../tests/data/dotnet/lines.dll");
const LISTED: &str = include_str!("../../../../tests/data/dotnet/lines.lines.txt");
const SOURCE: &str = include_str!("../../../../tests/data/dotnet/lines.cs");

fn pdb() -> PortablePdb {
    PortablePdb::parse(PDB.to_vec()).expect("a portable PDB")
}

fn at(pdb: &PortablePdb, token: u32, offset: u32) -> Option<(String, u32)> {
    pdb.line(token, IlPlace::Offset(offset))
}

#[test]
fn sequence_points_equal_those_of_the_frameworks_own_reader() {
    let pdb = pdb();
    let (mut token, mut last, mut methods, mut points) = (0, None, 0, 0);
    for line in LISTED.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["guid", guid] => {
                let text = stk_schema::identity::GuidText(&pdb.guid()).to_string();
                assert_eq!(text.to_lowercase(), *guid);
            }
            ["method", number] => {
                token = u32::from_str_radix(number, 16).expect("a token");
                last = None;
                methods += 1;
            }
            [offset, rest @ ..] => {
                let offset: u32 = offset.parse().expect("an offset");
                // Just before a point, the previous point counts.
                if offset > 0 {
                    assert_eq!(at(&pdb, token, offset - 1), last, "{token:x} before {offset}");
                }
                if let [line, document] = rest {
                    last = Some((document.to_string(), line.parse().expect("a line")));
                }
                assert_eq!(at(&pdb, token, offset), last, "{token:x} at {offset}");
                points += 1;
            }
            [] => {}
        }
    }
    assert_eq!((methods, points), (pdb.methods(), 48));
}

#[test]
fn lines_match_the_source() {
    let pdb = pdb();
    let source_line = |token, offset| {
        let (file, line) = at(&pdb, token, offset).expect("a line");
        assert_eq!(file, r".\lines.cs");
        SOURCE.lines().nth(line as usize - 1).expect("a line of the source").trim()
    };
    // Simple.Add, Simple.Loop (its hidden points are skipped), Simple.Several.
    assert_eq!(source_line(0x0600_0001, 0), "int sum = a;");
    assert_eq!(source_line(0x0600_0001, 4), "return sum;");
    assert_eq!(source_line(0x0600_0002, 25), "length += text.Length;");
    assert_eq!(source_line(0x0600_0002, 45), "foreach (string text in texts)");
    assert_eq!(source_line(0x0600_0004, 0), "int result = n;");
    assert_eq!(at(&pdb, 0x0600_0004, 1), Some((r".\generated\first.txt".to_owned(), 1000)));
    assert_eq!(at(&pdb, 0x0600_0004, 6), Some((r".\generated\second.txt".to_owned(), 2000)));
    let end = pdb.line(0x0600_0004, IlPlace::Epilogue).expect("the end");
    assert_eq!(SOURCE.lines().nth(end.1 as usize - 1).map(str::trim), Some("return result;"));
}

#[test]
fn only_method_definitions_have_lines() {
    let pdb = pdb();
    for token in [0, 0x0600_0000, 0x06FF_FFFF, 0x0A00_0001, 0x2B00_0001, pdb.methods() + 0x0600_0001] {
        assert_eq!(at(&pdb, token, 0), None, "{token:x}");
    }
}

/// A PDB with two texts, one packed and one too short for that.
const EMBEDDED: &[u8] = include_bytes!("../../../../tests/data/dotnet/embedded.pdb");

#[test]
fn texts_that_the_compiler_embedded_equal_the_sources() {
    let embedded = PortablePdb::parse(EMBEDDED.to_vec()).expect("a portable PDB");
    let text =
        |path| embedded.source(path).expect("whole").map(|text| String::from_utf8(text).expect("UTF-8"));
    let (dump, short) = (
        include_str!("../../../../tests/data/dotnet/dump.cs"),
        include_str!("../../../../tests/data/dotnet/short.cs"),
    );
    assert_eq!(text(r".\dump.cs").as_deref(), Some(dump));
    assert_eq!(text(r".\short.cs").as_deref(), Some(short));
    assert_eq!(text(r".\other.cs"), None);
    assert_eq!(pdb().source(r".\lines.cs"), Ok(None));
}

/// A PDB with a SourceLink map.
const LINKED: &[u8] = include_bytes!("../../../../tests/data/dotnet/linked.pdb");

#[test]
fn map_and_hashes_are_those_that_the_compiler_wrote() {
    let linked = PortablePdb::parse(LINKED.to_vec()).expect("a portable PDB");
    let map = br#"{"documents":{".\\*":"https://source.test/build/1a2b3c/*",".\\short.cs":"https://source.test/generated/short.cs"}}"#;
    assert_eq!(linked.source_link().map(<[u8]>::trim_ascii), Some(&map[..]));
    // Of sha256sum and sha1sum.
    let hash = |hex: &str| {
        let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        (0..hex.len()).step_by(2).map(pair).collect::<Vec<u8>>()
    };
    assert_eq!(
        linked.hash(r".\dump.cs"),
        Some(DocumentHash::Sha256(hash("d3a901c0880b066c30280d0ec2c8528b7307956b29a07fac9ad673afa27989cc")))
    );
    assert_eq!(
        linked.hash(r".\short.cs"),
        Some(DocumentHash::Sha256(hash("75353149723c4a84c355abf0364f61a982582009d715fc7bcbf73638309a93ce")))
    );
    assert_eq!(linked.hash(r".\other.cs"), None);
    assert_eq!(pdb().source_link(), None);
}

#[test]
fn a_changed_byte_gives_a_whole_packed_text_or_none() {
    let len = include_bytes!("../../../../tests/data/dotnet/dump.cs").len();
    let mut damaged = 0;
    for at in 0..EMBEDDED.len() {
        for bit in [0x01, 0x80] {
            let mut bytes = EMBEDDED.to_vec();
            bytes[at] ^= bit;
            match PortablePdb::parse(bytes).map(|pdb| pdb.source(r".\dump.cs")) {
                Ok(Ok(Some(text))) => assert_eq!(text.len(), len, "{at}"),
                Ok(Ok(None)) | Err(_) => {}
                Ok(Err(_)) => damaged += 1,
            }
        }
    }
    assert_ne!(damaged, 0);
}

#[test]
fn the_pdb_inside_an_assembly_is_the_same() {
    let debug = assembly_debug(ASSEMBLY).expect("an image");
    let inside = inflate(debug.embedded.expect("an embedded PDB")).expect("unpacks");
    let inside = PortablePdb::parse(inside).expect("a portable PDB");
    assert_eq!(debug.guid, Some(inside.guid()));
    let outside = pdb();
    for method in 1..=outside.methods() {
        for offset in 0..300 {
            let token = 0x0600_0000 | method;
            assert_eq!(at(&inside, token, offset), at(&outside, token, offset));
        }
    }
}

#[test]
fn a_pdb_that_unpacks_to_another_size_than_stated_is_refused() {
    let packed = assembly_debug(ASSEMBLY).and_then(|debug| debug.embedded).expect("an embedded PDB");
    for size in [0u32, 10, 1 << 20, 1 << 31] {
        let mut bytes = packed.to_vec();
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        assert_eq!(inflate(&bytes), None, "{size}");
    }
    for len in 0..packed.len() {
        assert_eq!(inflate(&packed[..len]), None, "{len}");
    }
}

#[test]
fn a_pdb_with_an_implausible_size_is_refused_before_it_is_unpacked() {
    use std::io::Write;
    let unpacked = |len: u32, stated: u32| {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&vec![0; len as usize]).expect("packs");
        let packed = encoder.finish().expect("packs");
        inflate(&[&b"MPDB"[..], &stated.to_le_bytes(), &packed].concat()).map(|bytes| bytes.len())
    };
    assert_eq!(unpacked(1 << 16, 1 << 16), Some(1 << 16));
    assert_eq!(unpacked(8 << 20, 8 << 20), None, "a thousand times its packed size");
}

#[test]
fn bytes_cut_off_anywhere_are_refused_or_give_less() {
    for len in 0..PDB.len() {
        if let Ok(pdb) = PortablePdb::parse(PDB[..len].to_vec()) {
            (1..=pdb.methods()).for_each(|method| drop(at(&pdb, 0x0600_0000 | method, 9)));
        }
    }
    for len in 0..ASSEMBLY.len() {
        let debug = assembly_debug(&ASSEMBLY[..len]);
        assert!(debug.is_none_or(|debug| debug.embedded.is_none()) || len > 4096);
    }
}

#[test]
fn an_assembly_is_read_at_any_address() {
    let whole = assembly_debug(ASSEMBLY);
    for offset in 1..8 {
        let shifted = [&[0; 8][..offset], ASSEMBLY].concat();
        assert_eq!(assembly_debug(&shifted[offset..]), whole, "{offset}");
    }
}

#[test]
fn damaged_bytes_do_not_panic() {
    for at_byte in 0..PDB.len() {
        for value in [0, 0x7F, 0xBF, 0xFF] {
            let mut bytes = PDB.to_vec();
            bytes[at_byte] = value;
            if let Ok(pdb) = PortablePdb::parse(bytes) {
                (1..=pdb.methods().min(20)).for_each(|method| drop(at(&pdb, 0x0600_0000 | method, u32::MAX)));
            }
        }
    }
}
