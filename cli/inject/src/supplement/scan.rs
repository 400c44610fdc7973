//! Reads a trace's data on its modules, and decides whether an image file is one of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use stk_format::image::Image;
use stk_format::{BlockKind, Scratch, Trace};
use stk_schema::Ticks;
use stk_schema::event::{Event, ImageTable, ModuleFlags, ModuleLoad};
use stk_schema::identity::{ContentHash, Identity, PeIdentity};
use thiserror::Error;

const PAGE: u64 = 4096;

/// Why an image file is not accepted as a module's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(crate) enum MismatchError {
    /// It has another identity.
    #[error("the file at its path is another build: its {0} differs")]
    OtherBuild(&'static str),
    /// It may be another file than the one that was loaded.
    #[error("no identity is known, and the file has changed since it was loaded")]
    Changed,
    /// It may have been another file when the module was loaded.
    #[error("no identity is known, nor when it was loaded")]
    LoadTimeUnknown,
}

/// A module instance as the trace describes it.
#[derive(Clone, Debug)]
pub(crate) struct KnownModule {
    /// Path, WTF-8.
    pub path: Vec<u8>,
    /// Load address.
    pub base: u64,
    /// Bytes mapped.
    pub size: u64,
    /// When it was loaded.
    pub time: Ticks,
    /// How it became known.
    pub flags: ModuleFlags,
    pub pe: Option<PeIdentity>,
    pub code_view: Option<([u8; 16], u32)>,
    /// Hash of its headers.
    pub header_hash: Option<ContentHash>,
    /// Its recorded tables; empty if there are none.
    pub tables: Vec<ImageTable>,
}

impl KnownModule {
    fn new(load: &ModuleLoad<'_>) -> KnownModule {
        let mut module = KnownModule {
            path: load.path.to_vec(),
            base: load.base,
            size: load.size,
            time: load.time,
            flags: load.flags,
            pe: None,
            code_view: None,
            header_hash: None,
            tables: Vec::new(),
        };
        for identity in &load.identities {
            match identity {
                Identity::Pe(pe) => module.pe = Some(*pe),
                Identity::CodeView(record) => module.code_view = Some((record.guid, record.age)),
                Identity::HeaderHash(hash) => module.header_hash = Some(*hash),
                Identity::ElfBuildId(_) | Identity::Unknown(..) => {}
            }
        }
        module
    }

    /// Whether the module lacks tables or an identity.
    pub(crate) fn lacks(&self, tables: bool) -> bool {
        !self.has_identity() || tables && self.tables.is_empty()
    }

    /// Whether the recorder knew any identity.
    pub(crate) fn has_identity(&self) -> bool {
        self.pe.is_some() || self.code_view.is_some() || self.header_hash.is_some()
    }

    /// Whether its identities identify one image, which a size alone does not.
    pub(crate) fn is_identified(&self) -> bool {
        self.code_view.is_some()
            || self.header_hash.is_some()
            || self.pe.is_some_and(|pe| pe.time_date_stamp != 0 || pe.check_sum != 0)
    }

    /// Its path as text.
    pub(crate) fn shown(&self) -> String {
        match String::from_utf8_lossy(&self.path) {
            path if path.is_empty() => format!("module at {:#x}", self.base),
            path => path.into_owned(),
        }
    }

    /// Whether `image`, read from a file that was last changed at `changed` (ns since the Unix
    /// epoch), is this module.
    pub(crate) fn accepts(&self, image: &Image, changed: u64, scan: &Scan) -> Result<(), MismatchError> {
        let other = |what: &'static str| Err(MismatchError::OtherBuild(what));
        if let Some(pe) = self.pe {
            for (what, known, found) in [
                ("TimeDateStamp", pe.time_date_stamp, image.identity.time_date_stamp),
                ("SizeOfImage", pe.size_of_image, image.identity.size_of_image),
                ("CheckSum", pe.check_sum, image.identity.check_sum),
            ] {
                if known != found {
                    return other(what);
                }
            }
        }
        if let Some(known) = self.code_view
            && image.code_view.as_ref().map(|record| (record.guid, record.age)) != Some(known)
        {
            return other("CodeView record");
        }
        if self.header_hash.is_some_and(|known| known != image.header_hash) {
            return other("header");
        }
        if self.is_identified() {
            return Ok(());
        }
        if u64::from(image.identity.size_of_image).next_multiple_of(PAGE) != self.size.next_multiple_of(PAGE)
        {
            return other("size");
        }
        match scan.mapped_after(self) {
            Some(mapped) if changed < mapped => Ok(()),
            Some(_) => Err(MismatchError::Changed),
            None => Err(MismatchError::LoadTimeUnknown),
        }
    }
}

/// A trace's data on its modules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scan {
    /// By instance id.
    pub modules: BTreeMap<u64, KnownModule>,
    /// BLOBs that are whole in the trace.
    pub blobs: HashSet<ContentHash>,
    clock_start: Ticks,
    clock_frequency: u64,
    utc_start: u64,
    process_created: u64,
}

impl Scan {
    /// Reads META, STATE and BLOB blocks. Skips blocks that cannot be read.
    pub(crate) fn of(trace: &Trace<'_>) -> Scan {
        let header = trace.header();
        let mut scan = Scan {
            clock_start: header.clock_start,
            clock_frequency: header.clock_frequency,
            utc_start: header.utc_start,
            process_created: header.process_created,
            ..Scan::default()
        };
        let mut scratch = Scratch::new();
        let mut received: HashMap<ContentHash, u64> = HashMap::new();
        for block in trace.blocks() {
            if !matches!(block.header.kind, BlockKind::Meta | BlockKind::State | BlockKind::Blob) {
                continue;
            }
            let Ok(events) = trace.events(block, &mut scratch) else { continue };
            for event in events.map_while(Result::ok) {
                scan.event(&event, &mut received);
            }
        }
        scan
    }

    fn event(&mut self, event: &Event<'_>, received: &mut HashMap<ContentHash, u64>) {
        match event {
            Event::ModuleLoad(load) => {
                self.modules.entry(load.instance).or_insert_with(|| KnownModule::new(load));
            }
            Event::ModuleTables(tables) => {
                if let Some(module) = self.modules.get_mut(&tables.instance)
                    && module.tables.is_empty()
                {
                    module.tables.clone_from(&tables.tables);
                }
            }
            Event::Blob(piece) => {
                let bytes = received.entry(piece.hash).or_default();
                *bytes += piece.bytes.len() as u64;
                if *bytes >= piece.total {
                    self.blobs.insert(piece.hash);
                }
            }
            _ => {}
        }
    }

    /// Tables of another instance of the same image, by path and all identities that both have.
    pub(crate) fn tables_of_the_same(&self, module: &KnownModule) -> Option<&[ImageTable]> {
        let same = |other: &&KnownModule| {
            let hashes = (module.header_hash, other.header_hash);
            !other.tables.is_empty()
                && module.path.eq_ignore_ascii_case(&other.path)
                && module.pe == other.pe
                && module.code_view == other.code_view
                && !matches!(hashes, (Some(one), Some(other)) if one != other)
        };
        self.modules.values().find(same).map(|other| other.tables.as_slice())
    }

    /// A moment before which the module was not mapped, in ns since the Unix epoch. For a module
    /// found at the start, this is the process's creation.
    pub(crate) fn mapped_after(&self, module: &KnownModule) -> Option<u64> {
        if module.flags.contains(ModuleFlags::AT_START) {
            return Some(self.process_created).filter(|&created| created != 0);
        }
        let ticks = u128::from(module.time.0.checked_sub(self.clock_start.0)?);
        let ns = ticks * 1_000_000_000 / u128::from(self.clock_frequency.max(1));
        self.utc_start.checked_add(u64::try_from(ns).ok()?)
    }
}
