//! Makes an image's record from a module event: its names and identities, and the hash that is the
//! same in every trace.

use super::ImageRecord;
use super::text::text;
use stk_base::model::{Image, file_name, image_id, pdb_id, shortened};
use stk_schema::event::ModuleLoad;
use stk_schema::identity::{ContentHash, Identity};

/// Bytes of a file name that are kept beside the path. No file system has longer names.
const MAX_NAME: usize = 1 << 10;

/// Names and identities of a module's image.
pub(super) fn image_record(load: &ModuleLoad<'_>) -> ImageRecord {
    let path = text(load.path);
    let mut image = Image {
        name: shortened(file_name(&path), MAX_NAME).into_owned(),
        path,
        debug_id: String::new(),
        code_id: String::new(),
        pdb_name: String::new(),
        code_view: None,
        time_date_stamp: 0,
        size: u32::try_from(load.size).unwrap_or(u32::MAX),
        identity_hash: 0,
    };
    let mut header_hash = ContentHash::NONE;
    for identity in &load.identities {
        match identity {
            Identity::Pe(pe) => {
                image.code_id = image_id(pe.time_date_stamp, pe.size_of_image);
                image.time_date_stamp = pe.time_date_stamp;
                image.size = pe.size_of_image;
            }
            Identity::CodeView(record) => {
                image.debug_id = pdb_id(&record.guid, record.age);
                image.code_view = Some((record.guid, record.age));
                image.pdb_name = file_name(&text(record.pdb_name)).to_owned();
            }
            Identity::HeaderHash(hash) => header_hash = *hash,
            Identity::ElfBuildId(_) | Identity::Unknown(..) => {}
        }
    }
    if image.name.is_empty() {
        image.name = if image.pdb_name.is_empty() {
            format!("module@{:x}", load.base)
        } else {
            shortened(&image.pdb_name, MAX_NAME).into_owned()
        };
    }
    image.identity_hash = identity_hash(&image, header_hash);
    ImageRecord { image, header_hash, tables: Vec::new(), tables_reported: false }
}

/// See [`Image::identity_hash`]. The same image must give the same hash in every trace. The path
/// may differ between traces, so it counts only if there is no other identity.
fn identity_hash(image: &Image, header_hash: ContentHash) -> u64 {
    let mut bytes = Vec::with_capacity(64);
    if let Some((guid, age)) = image.code_view {
        bytes.extend_from_slice(b"codeview");
        bytes.extend_from_slice(&guid);
        bytes.extend_from_slice(&age.to_le_bytes());
    } else if !image.code_id.is_empty() || !header_hash.is_none() {
        bytes.extend_from_slice(b"headers\0");
        bytes.extend_from_slice(image.code_id.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(&header_hash.0);
    } else {
        bytes.extend_from_slice(b"path\0\0\0\0");
        bytes.extend_from_slice(image.path.to_lowercase().as_bytes());
        bytes.extend_from_slice(&image.size.to_le_bytes());
    }
    xxhash_rust::xxh3::xxh3_64(&bytes)
}
