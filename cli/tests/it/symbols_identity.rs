//! A symbol file whose identity differs from that of its path must be refused, reported, and never
//! stored.

use crate::cabinet;
use crate::support::kept;
use std::path::{Path, PathBuf};

use stk_symbols::pdb::PdbFile;
use stk_symbols::{BundleWriter, Identity, Search, SymbolCache, SymbolPath, SymbolStore, pdb_id};

fn busy() -> Vec<u8> {
    std::fs::read(kept("busy.pdb")).unwrap()
}

/// Identity of the kept busy.pdb.
fn identity() -> ([u8; 16], u32) {
    let data = busy();
    let identity = *PdbFile::open(&data).unwrap().identity();
    (identity.guid, identity.age)
}

/// An identity that no PDB here has.
const OTHER: [u8; 16] = [7; 16];

struct Setting {
    folder: tempfile::TempDir,
}

impl Setting {
    fn new() -> Setting {
        Setting { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn find(&self, named: &str, guid: [u8; 16]) -> Search {
        let mut store = SymbolStore::new(SymbolPath::from(self.path(named).as_path()));
        store.set_cache(SymbolCache::new(self.path("cache")));
        store.find_pdb("busy.pdb", &guid, identity().1, "")
    }

    /// The files in the cache.
    fn kept(&self) -> Vec<PathBuf> {
        let (mut found, mut folders) = (Vec::new(), vec![self.path("cache")]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                found.push(entry.path());
                folders.extend(entry.path().is_dir().then(|| entry.path()));
            }
        }
        found.retain(|path| path.is_file() || path.ends_with("busy.pdb"));
        found
    }

    /// Searches for busy.pdb of another build, where the real one lies under that build's identity.
    fn assert_refused(&self, named: &str) {
        let search = self.find(named, OTHER);
        assert!(search.found.is_none());
        let (guid, age) = identity();
        let reported: Vec<Identity> = search.mismatched.iter().map(|(_, found)| *found).collect();
        assert_eq!(reported, [Identity::Pdb { guid, age }], "{search:?}");
        assert_eq!(self.kept(), Vec::<PathBuf>::new());
    }
}

fn bundle(path: &Path, guid: [u8; 16], contents: &[u8]) {
    let mut writer = BundleWriter::new(std::fs::File::create(path).unwrap());
    writer.add("busy.pdb", &pdb_id(&guid, identity().1), contents).unwrap();
    writer.finish().unwrap();
}

/// The folder of an identity in a store.
fn tier(store: &Path, guid: [u8; 16]) -> PathBuf {
    let folder = store.join("busy.pdb").join(pdb_id(&guid, identity().1));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_member_of_a_bundle_that_is_another_build_is_not_kept() {
    let setting = Setting::new();
    bundle(&setting.path("x.tar.zst"), OTHER, &busy());
    setting.assert_refused("x.tar.zst");
}

#[test]
fn a_member_of_a_bundle_that_is_no_pdb_is_not_kept() {
    let setting = Setting::new();
    bundle(&setting.path("x.tar.zst"), OTHER, &vec![0; 5 << 20]);
    let search = setting.find("x.tar.zst", OTHER);
    assert!(search.unreadable.iter().any(|(_, why)| why.contains("not a PDB")), "{search:?}");
    assert_eq!(setting.kept(), Vec::<PathBuf>::new());
}

#[test]
fn a_member_of_a_bundle_with_the_right_identity_is_kept() {
    let setting = Setting::new();
    let (guid, age) = identity();
    bundle(&setting.path("x.tar.zst"), guid, &busy());
    let found = setting.find("x.tar.zst", guid).found.unwrap();
    let place = setting.path("cache/store/busy.pdb").join(pdb_id(&guid, age)).join("busy.pdb");
    assert!(found.path == place && std::fs::read(place).unwrap() == busy());
}

#[test]
fn a_cabinet_that_holds_another_build_is_not_kept() {
    let setting = Setting::new();
    let folder = tier(&setting.path("store"), OTHER);
    std::fs::write(folder.join("busy.pd_"), cabinet::of("busy.pdb", &busy())).unwrap();
    setting.assert_refused("store");
}

#[test]
fn a_file_in_a_store_that_is_another_build_is_refused() {
    let setting = Setting::new();
    let folder = tier(&setting.path("store"), OTHER);
    std::fs::write(folder.join("busy.pdb"), busy()).unwrap();
    setting.assert_refused("store");
    assert!(folder.join("busy.pdb").is_file(), "a store of the user's is left alone");
}

#[test]
fn a_file_in_the_cache_that_is_another_build_is_deleted() {
    let setting = Setting::new();
    let folder = tier(&setting.path("cache/store"), OTHER);
    std::fs::write(folder.join("busy.pdb"), busy()).unwrap();
    let search = setting.find("none", OTHER);
    assert!(search.found.is_none() && !search.mismatched.is_empty(), "{search:?}");
    assert!(!folder.join("busy.pdb").exists());
}

#[test]
fn an_image_of_another_build_is_refused_and_reported() {
    let setting = Setting::new();
    let mut image = vec![0; 0x200];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"MZ");
    put(0x3c, &0x40u32.to_le_bytes());
    put(0x40, b"PE\0\0");
    put(0x48, &0x1234_5678u32.to_le_bytes());
    put(0x40 + 24 + 56, &0xa000u32.to_le_bytes());
    let folder = setting.path("store/x.dll/00000001a000");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("x.dl_"), cabinet::of("busy.pdb", &image)).unwrap();
    let mut store = SymbolStore::new(SymbolPath::from(setting.path("store").as_path()));
    store.set_cache(SymbolCache::new(setting.path("cache")));
    let search = store.find_image(r"C:\x.dll", 1, 0xa000);
    let found = Identity::Image { time_date_stamp: 0x1234_5678, size_of_image: 0xa000 };
    assert_eq!(search.mismatched.first().map(|(_, found)| *found), Some(found), "{search:?}");
    assert_eq!(setting.kept(), Vec::<PathBuf>::new());
}
