//! Keeps the list of mapped modules: turns notifications and snapshots into module instances.
//!
//! Different modules can lie at the same address at different times, and a module can be loaded
//! again at another address, so each load is an instance of its own. The loader's notifications are
//! ordered and exact but begin when the recorder registers. A snapshot of the loader's list also
//! has the modules loaded before that, but races with loads. Rules: the recorder registers for
//! notifications before it takes the snapshot, and a notified load of a module that the snapshot
//! already showed is the same instance.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use stk_schema::Ticks;
use stk_schema::event::{Event, ImageTable, ModuleFlags, ModuleLoad, ModuleTables};
use stk_schema::identity::{CodeView, Identity, PeIdentity};

use super::fingerprint::Fingerprint;
use super::image::Image;

/// Takes events in the order in which the trace is to hold them.
pub(crate) trait Events {
    fn event(&mut self, event: &Event<'_>);
}

/// A module as a notification or a snapshot reports it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModuleSighting {
    /// Load address.
    pub base: u64,
    /// Bytes mapped.
    pub size: u64,
    /// Full path, WTF-8.
    pub path: Vec<u8>,
}

/// A live module instance.
#[derive(Debug)]
pub(crate) struct Module {
    pub instance: u64,
    /// When it was loaded.
    pub time: Ticks,
    /// What was seen.
    pub seen: ModuleSighting,
    /// How it became known.
    pub flags: ModuleFlags,
    /// Its headers; `None` if they are unreadable.
    pub image: Option<Image>,
    /// The identity that the notification of its load kept.
    pub print: Option<Box<Fingerprint>>,
    /// Its tables, once they are recorded.
    pub tables: Option<Vec<ImageTable>>,
}

impl Module {
    /// Whether any of its tables were recorded.
    pub(crate) fn has_tables(&self) -> bool {
        self.tables.as_ref().is_some_and(|tables| !tables.is_empty())
    }

    /// Its header fields, if they are known.
    pub(crate) fn identity(&self) -> Option<PeIdentity> {
        let of_print = self.print.as_ref().map(|print| print.pe);
        self.image.as_ref().map(|image| image.identity).or(of_print)
    }

    fn overlaps(&self, seen: &ModuleSighting) -> bool {
        self.seen.base < seen.base.saturating_add(seen.size) && seen.base < self.seen.base + self.seen.size
    }

    fn write_load(&self, flags: ModuleFlags, out: &mut impl Events) {
        let mut identities = Vec::new();
        if let Some(image) = &self.image {
            identities.push(Identity::Pe(image.identity));
            if let Some(record) = &image.code_view {
                identities.push(Identity::CodeView(CodeView {
                    guid: record.guid,
                    age: record.age,
                    pdb_name: &record.pdb_name,
                }));
            }
            identities.push(Identity::HeaderHash(image.header_hash));
        } else if let Some(print) = &self.print {
            identities.extend(print.identities());
        }
        out.event(&Event::ModuleLoad(ModuleLoad {
            instance: self.instance,
            time: self.time,
            base: self.seen.base,
            size: self.seen.size,
            flags,
            path: &self.seen.path,
            identities,
        }));
    }

    fn write_tables(&self, out: &mut impl Events) {
        if let Some(tables) = &self.tables {
            out.event(&Event::ModuleTables(ModuleTables { instance: self.instance, tables: tables.clone() }));
        }
    }
}

/// The live modules of the process.
#[derive(Debug)]
pub(crate) struct Modules {
    live: Vec<Module>,
    /// The next instance id: dynamic code takes its ids from here too.
    ids: Arc<AtomicU64>,
}

impl Default for Modules {
    fn default() -> Modules {
        Modules { live: Vec::new(), ids: Arc::new(AtomicU64::new(1)) }
    }
}

impl Modules {
    /// The counter of instance ids, for others that share the number space.
    pub(crate) fn ids(&self) -> Arc<AtomicU64> {
        self.ids.clone()
    }

    /// The live modules, in the order in which they became known.
    pub(crate) fn live(&self) -> &[Module] {
        &self.live
    }

    /// Notes a notified or snapshotted load at `time`. Writes MODULE_LOAD, and MODULE_UNLOAD for
    /// every older module that it overlaps, whose unload was missed. Returns the new instance;
    /// `None` if it was known already.
    ///
    /// `image` holds its headers, if they could be read, `print` the identity that the notification
    /// kept. Headers with another identity belong to another module and are ignored.
    pub(crate) fn loaded(
        &mut self,
        time: Ticks,
        seen: ModuleSighting,
        flags: ModuleFlags,
        (image, print): (Option<Image>, Option<Box<Fingerprint>>),
        out: &mut impl Events,
    ) -> Option<u64> {
        let image = image.filter(|image| print.as_ref().is_none_or(|print| print.pe == image.identity));
        if let Some(known) = self.live.iter_mut().find(|module| is_same(&module.seen, &seen)) {
            // Both report the same load: the notification was queued before the snapshot was taken.
            known.flags |= flags & ModuleFlags::NOTIFIED;
            return None;
        }
        while let Some(stale) = self.live.iter().position(|module| module.overlaps(&seen)) {
            let stale = self.live.remove(stale);
            out.event(&Event::ModuleUnload { instance: stale.instance, time });
        }
        let mut module = Module {
            instance: self.ids.fetch_add(1, Ordering::Relaxed),
            time,
            seen,
            flags,
            image,
            print,
            tables: None,
        };
        if module.image.is_none() {
            module.flags |= ModuleFlags::HEADERS_UNREADABLE;
        }
        module.write_load(module.flags, out);
        let instance = module.instance;
        self.live.push(module);
        Some(instance)
    }

    /// A notified unload at `time`.
    pub(crate) fn unloaded(&mut self, time: Ticks, base: u64, out: &mut impl Events) {
        if let Some(index) = self.live.iter().position(|module| module.seen.base == base) {
            let module = self.live.remove(index);
            out.event(&Event::ModuleUnload { instance: module.instance, time });
        }
    }

    /// After notifications were lost: what a new snapshot does not show any more was unloaded by
    /// `time`, except what no list showed.
    pub(crate) fn retain_shown(&mut self, time: Ticks, shown: &[ModuleSighting], out: &mut impl Events) {
        self.live.retain(|module| {
            let unlisted = module.flags.contains(ModuleFlags::UNLISTED);
            let keep = unlisted || shown.iter().any(|seen| is_same(&module.seen, seen));
            if !keep {
                out.event(&Event::ModuleUnload { instance: module.instance, time });
            }
            keep
        });
    }

    /// Notes the recorded tables of an instance. Writes MODULE_TABLES, unless the module was
    /// unloaded meanwhile.
    pub(crate) fn tables_recorded(&mut self, instance: u64, tables: Vec<ImageTable>, out: &mut impl Events) {
        if let Some(module) = self.live.iter_mut().find(|module| module.instance == instance) {
            module.tables = Some(tables);
            module.write_tables(out);
        }
    }

    /// The next file begins: every live module was there when it did. It has no tables yet: each
    /// module's are to be recorded again.
    pub(crate) fn begin_file(&mut self) {
        for module in &mut self.live {
            module.flags |= ModuleFlags::AT_START;
            module.tables = None;
        }
    }

    /// Takes out the headers of a module while its tables are read.
    pub(crate) fn take_image(&mut self, instance: u64) -> Option<Image> {
        self.live.iter_mut().find(|module| module.instance == instance)?.image.take()
    }

    /// Puts back the headers that [`Modules::take_image`] took.
    pub(crate) fn put_image(&mut self, instance: u64, image: Option<Image>) {
        if let Some(module) = self.live.iter_mut().find(|module| module.instance == instance) {
            module.image = image;
        }
    }

    /// The live module with this instance id.
    pub(crate) fn get(&self, instance: u64) -> Option<&Module> {
        self.live.iter().find(|module| module.instance == instance)
    }

    /// The live module whose load address is `base`.
    pub(crate) fn based_at(&self, base: u64) -> Option<&Module> {
        self.live.iter().find(|module| module.seen.base == base)
    }

    /// The live module that `address` is in.
    pub(crate) fn holding(&self, address: u64) -> Option<&Module> {
        let holds = |module: &&Module| {
            address.checked_sub(module.seen.base).is_some_and(|rva| rva < module.seen.size)
        };
        self.live.iter().find(holds)
    }

    /// Writes every live module again, for a STATE block.
    pub(crate) fn restate(&self, out: &mut impl Events) {
        for module in &self.live {
            module.write_load(module.flags | ModuleFlags::RESTATED, out);
            module.write_tables(out);
        }
    }
}

/// Whether two sightings are of one mapping. Sizes may differ (the loader's list and the
/// notification round differently under Wine), and a path may be cut, so the base decides, unless
/// the paths contradict each other.
pub(super) fn is_same(one: &ModuleSighting, other: &ModuleSighting) -> bool {
    one.base == other.base
        && (one.path.is_empty()
            || other.path.is_empty()
            || one.path.starts_with(&other.path)
            || other.path.starts_with(&one.path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;

    #[derive(Default)]
    struct ModuleLog(Vec<String>);

    impl Events for ModuleLog {
        fn event(&mut self, event: &Event<'_>) {
            self.0.push(match event {
                Event::ModuleLoad(load) => format!(
                    "load {} {}{} at {:x}",
                    load.instance,
                    String::from_utf8_lossy(load.path),
                    if load.flags.contains(ModuleFlags::RESTATED) { " again" } else { "" },
                    load.base
                ),
                Event::ModuleUnload { instance, time } => format!("unload {instance} at time {}", time.0),
                Event::ModuleTables(tables) => format!("tables {}", tables.instance),
                other => format!("{other:?}"),
            });
        }
    }

    fn seen(base: u64, path: &str) -> ModuleSighting {
        ModuleSighting { base, size: 0x1000, path: path.as_bytes().to_vec() }
    }

    fn load(modules: &mut Modules, time: u64, base: u64, path: &str, log: &mut ModuleLog) -> Option<u64> {
        modules.loaded(Ticks(time), seen(base, path), ModuleFlags::NOTIFIED, (None, None), log)
    }

    #[test]
    fn a_load_that_both_notification_and_snapshot_saw_is_one_instance() {
        let (mut modules, mut log) = (Modules::default(), ModuleLog::default());
        modules.loaded(Ticks(1), seen(0x1000, "a.dll"), ModuleFlags::AT_START, (None, None), &mut log);
        assert_eq!(load(&mut modules, 2, 0x1000, "a.dll", &mut log), None);
        assert_eq!(log.0, ["load 1 a.dll at 1000"]);
        assert!(modules.live()[0].flags.contains(ModuleFlags::NOTIFIED));
    }

    #[test]
    fn a_reused_address_is_a_new_instance_even_if_the_unload_was_lost() {
        let (mut modules, mut log) = (Modules::default(), ModuleLog::default());
        load(&mut modules, 1, 0x1000, "a.dll", &mut log);
        load(&mut modules, 5, 0x1800, "b.dll", &mut log);
        modules.unloaded(Ticks(7), 0x1800, &mut log);
        load(&mut modules, 9, 0x1000, "a.dll", &mut log);
        assert_eq!(
            log.0,
            [
                "load 1 a.dll at 1000",
                "unload 1 at time 5",
                "load 2 b.dll at 1800",
                "unload 2 at time 7",
                "load 3 a.dll at 1000"
            ]
        );
    }

    #[test]
    fn a_snapshot_corrects_the_list_after_lost_notifications() {
        let (mut modules, mut log) = (Modules::default(), ModuleLog::default());
        load(&mut modules, 1, 0x1000, "a.dll", &mut log);
        load(&mut modules, 1, 0x3000, "b.dll", &mut log);
        let shown = [seen(0x3000, "b.dll"), seen(0x5000, "c.dll")];
        log.0.clear();
        modules.retain_shown(Ticks(4), &shown, &mut log);
        for one in shown {
            modules.loaded(Ticks(4), one, ModuleFlags::default(), (None, None), &mut log);
        }
        assert_eq!(log.0, ["unload 1 at time 4", "load 3 c.dll at 5000"]);
    }

    #[test]
    fn tables_of_an_unloaded_module_are_not_given_to_its_successor() {
        let (mut modules, mut log) = (Modules::default(), ModuleLog::default());
        let first = load(&mut modules, 1, 0x1000, "a.dll", &mut log).unwrap();
        modules.unloaded(Ticks(2), 0x1000, &mut log);
        load(&mut modules, 3, 0x1000, "a.dll", &mut log);
        log.0.clear();
        modules.tables_recorded(first, Vec::new(), &mut log);
        assert!(log.0.is_empty());
        modules.tables_recorded(2, Vec::new(), &mut log);
        modules.restate(&mut log);
        assert_eq!(log.0, ["tables 2", "load 2 a.dll again at 1000", "tables 2"]);
    }
}
