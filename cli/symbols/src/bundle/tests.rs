//! Tests on bundles from this writer, from other programs, and on hostile ones.

use super::*;

fn file(bytes: &[u8]) -> (tempfile::TempDir, Bundle) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tar.zst");
    std::fs::write(&path, bytes).unwrap();
    let bundle = Bundle::open(&path).unwrap();
    (folder, bundle)
}

fn contents(bundle: &Bundle, name: &str, id: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    bundle.unpack(name, id, 1 << 20, &mut out).unwrap().map(|len| {
        assert_eq!(len, out.len() as u64);
        out
    })
}

/// Three files, one of them with a name too long for a tar header.
fn files() -> Vec<(String, String, Vec<u8>)> {
    let bytes = |seed: u32, len: u32| (0..len).flat_map(|n| (n / 5 * seed).to_le_bytes()).collect();
    vec![
        ("a.pdb".to_owned(), "0123456789ABCDEF0123456789ABCDEF1".to_owned(), bytes(7, 50_000)),
        (format!("{}.pdb", "long".repeat(40)), "0123456789ABCDEF0123456789ABCDEF2".to_owned(), bytes(3, 100)),
        ("ä.dll".to_owned(), "12345678a000".to_owned(), Vec::new()),
    ]
}

fn packed(files: &[(String, String, Vec<u8>)]) -> Vec<u8> {
    let mut writer = BundleWriter::new(Vec::new());
    files.iter().for_each(|(name, id, data)| writer.add(name, id, data).unwrap());
    writer.finish().unwrap()
}

#[test]
fn bundled_files_are_read_back() {
    for files in [files(), files().into_iter().filter(|file| file.0.len() < 100).collect(), Vec::new()] {
        let (_folder, bundle) = file(&packed(&files));
        assert_eq!(bundle.len(), files.len());
        for (name, id, data) in &files {
            assert!(bundle.holds(name, id));
            assert!(contents(&bundle, name, id).as_ref() == Some(data), "{name}");
            assert!(contents(&bundle, &name.to_uppercase(), &id.to_lowercase()).is_some());
        }
        assert_eq!(contents(&bundle, "a.pdb", "0"), None);
    }
}

#[test]
fn a_short_name_is_found_without_unpacking_the_members_before() {
    let files: Vec<_> = files().into_iter().filter(|file| file.0.len() < 100).collect();
    let bytes = packed(&files);
    let (_folder, bundle) = file(&bytes);
    let mut starts: Vec<usize> = bundle.members.values().map(|frames| frames.start).collect();
    starts.sort_unstable();
    assert_eq!(starts[0], 0);
    assert!(starts[1] > 0);
}

#[test]
fn a_bundle_of_one_frame_is_read_too() {
    let (_folder, bundle) = file(&packed(&files()));
    let mut plain = Vec::new();
    ZstdFrames::new(&bundle.file, u64::MAX).unwrap().read_to_end(&mut plain).unwrap();
    let (_folder, bundle) = file(&frame(std::iter::once(plain)));
    for (name, id, data) in files() {
        assert!(contents(&bundle, &name, &id) == Some(data), "{name}");
    }
}

#[test]
fn a_file_beyond_the_limit_is_refused() {
    let (_folder, bundle) = file(&packed(&files()));
    let (name, id, data) = &files()[0];
    let error = bundle.unpack(name, id, data.len() as u64 - 1, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("larger"), "{error}");
}

#[test]
fn every_prefix_and_flipped_byte_gives_an_error_or_the_contents() {
    let files = vec![("a.pdb".to_owned(), "1".to_owned(), b"contents ".repeat(100))];
    let bytes = packed(&files);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tar.zst");
    let check = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let mut out = Vec::new();
        if let Ok(bundle) = Bundle::open(&path)
            && let Ok(Some(_)) = bundle.unpack("a.pdb", "1", 1 << 20, &mut out)
        {
            assert!(out == files[0].2);
        }
    };
    (0..bytes.len()).for_each(|len| check(&bytes[..len]));
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            check(&damaged);
        }
    }
}

/// One frame of an archive with the members (type, name, stated size, contents).
fn archive(members: &[(tar::EntryType, &str, u64, &[u8])]) -> Vec<u8> {
    let mut plain = Vec::new();
    for &(kind, name, size, contents) in members {
        let mut header = tar::Header::new_gnu();
        header.set_path(name).unwrap();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        plain.extend_from_slice(header.as_bytes());
        plain.extend_from_slice(contents);
        plain.resize(plain.len().next_multiple_of(512), 0);
    }
    plain
}

fn frame(plain: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut writer = write::Encoder::new(Vec::new(), 1).unwrap();
    plain.for_each(|piece| writer.write_all(&piece).unwrap());
    writer.finish().unwrap()
}

fn open(bytes: &[u8]) -> io::Result<Bundle> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tar.zst");
    std::fs::write(&path, bytes).unwrap();
    Bundle::open(&path)
}

#[test]
fn a_long_name_header_is_refused_by_its_stated_size_before_it_is_read() {
    for kind in [tar::EntryType::GNULongName, tar::EntryType::XHeader] {
        let head = archive(&[(kind, "x", 8 << 30, &[])]);
        // The whole archive would still be below the limit for unpacking.
        let bytes = frame(std::iter::once(head).chain((0..12).map(|_| vec![b'a'; 1 << 20])));
        let error = open(&bytes).unwrap_err();
        assert!(error.to_string().contains("header"), "{kind:?}: {error}");
    }
}

#[test]
fn names_in_headers_of_their_own_are_read() {
    let name = format!("{}.pdb/1/{0}.pdb", "long".repeat(40));
    let pax = format!("path={name}\n");
    // The length counts itself: three digits and a space.
    let pax = format!("{} {pax}", pax.len() + 4);
    for (kind, header) in [(tar::EntryType::GNULongName, format!("{name}\0")), (tar::EntryType::XHeader, pax)]
    {
        let plain = archive(&[
            (kind, "x", header.len() as u64, header.as_bytes()),
            (tar::EntryType::Regular, "short", 8, b"contents"),
        ]);
        let (_folder, bundle) = file(&frame([plain].into_iter()));
        let file_name = format!("{}.pdb", "long".repeat(40));
        assert_eq!(contents(&bundle, &file_name, "1").as_deref(), Some(&b"contents"[..]), "{kind:?}");
    }
}

#[test]
fn an_archive_that_expands_too_far_is_refused() {
    let head = archive(&[(tar::EntryType::Regular, "a.pdb/1/a.pdb", 1 << 30, &[])]);
    let bytes = frame(std::iter::once(head).chain((0..64).map(|_| vec![0; 1 << 20])));
    assert!(unpacked_limit(bytes.len()) < 64 << 20);
    let error = open(&bytes).unwrap_err();
    assert!(error.to_string().contains("expands"), "{error}");
}

#[test]
fn more_members_than_any_bundle_has_are_refused() {
    let member = |n: usize| archive(&[(tar::EntryType::Regular, &format!("{n}"), 0, &[])]);
    let bytes = frame((0..=MAX_MEMBERS).map(member));
    let error = open(&bytes).unwrap_err();
    assert!(error.to_string().contains("more than"), "{error}");
}

#[test]
fn a_bundle_of_one_frame_is_unpacked_a_limited_number_of_times() {
    let plain = archive(&[
        (tar::EntryType::Regular, "big", 12 << 20, &vec![0; 12 << 20]),
        (tar::EntryType::Regular, "a.pdb/1/a.pdb", 1, b"a"),
    ]);
    let (_folder, bundle) = file(&frame([plain].into_iter()));
    let unpack = || bundle.unpack("a.pdb", "1", 1 << 20, &mut Vec::new());
    assert_eq!(unpack().unwrap(), Some(1));
    let error = (0..1000).find_map(|_| unpack().err()).expect("no end");
    assert!(error.to_string().contains("tar -xf"), "{error}");
}
