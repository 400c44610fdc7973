//! When the process ends, writes the loader notifications that the tables thread has not written.
//! The thread that ends the process does it, alone, with a fixed number of small allocations and
//! without waiting. Tables are left to the supplement.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use stk_schema::event::{Event, ModuleFlags, ModuleLoad};

use super::loader_queue::Change;
use super::modules::{Events, Modules, is_same};

/// Most loads that are written.
pub(crate) const MOST: usize = 64;

/// Writes the last changes of the process.
pub(crate) struct LastModules<'a> {
    known: Option<&'a Modules>,
    ids: &'a AtomicU64,
    /// Load address and instance of each load written here; instance 0 once it was unloaded.
    new: [(u64, u64); MOST],
    count: usize,
}

impl<'a> LastModules<'a> {
    /// `known` is what the tables thread knew, or `None` if it was terminated while it changed
    /// that. `ids` gives instance ids.
    pub(crate) fn new(known: Option<&'a Modules>, ids: &'a AtomicU64) -> LastModules<'a> {
        LastModules { known, ids, new: [(0, 0); MOST], count: 0 }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.count < MOST
    }

    /// Writes MODULE_LOAD or MODULE_UNLOAD for a change. Skips a load that is already known and an
    /// unload of an unknown module.
    pub(crate) fn write(&mut self, change: &Change, out: &mut impl Events) {
        match change {
            Change::Loaded { time, seen, print, .. } => {
                let shown = self.known.and_then(|known| known.based_at(seen.base));
                let Some(place) = self.new.get_mut(self.count) else { return };
                if shown.is_some_and(|module| is_same(&module.seen, seen)) {
                    return;
                }
                let mut flags = ModuleFlags::NOTIFIED;
                flags.set(ModuleFlags::HEADERS_UNREADABLE, print.is_none());
                let instance = self.ids.fetch_add(1, Ordering::Relaxed);
                *place = (seen.base, instance);
                self.count += 1;
                let identities = print.as_ref().map_or(Vec::new(), |print| print.identities().collect());
                out.event(&Event::ModuleLoad(ModuleLoad {
                    instance,
                    time: *time,
                    base: seen.base,
                    size: seen.size,
                    flags,
                    path: &seen.path,
                    identities,
                }));
            }
            Change::Unloaded { time, base, .. } => {
                let live = |place: &&mut (u64, u64)| place.0 == *base && place.1 != 0;
                let instance = match self.new.iter_mut().find(live) {
                    Some(place) => core::mem::take(&mut place.1),
                    None => {
                        self.known.and_then(|known| known.based_at(*base)).map_or(0, |known| known.instance)
                    }
                };
                if instance != 0 {
                    out.event(&Event::ModuleUnload { instance, time: *time });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::modules::ModuleSighting;
    use alloc::format;
    use alloc::string::String;
    use stk_schema::Ticks;

    #[derive(Default)]
    struct LastModulesLog(Vec<String>);

    impl Events for LastModulesLog {
        fn event(&mut self, event: &Event<'_>) {
            self.0.push(match event {
                Event::ModuleLoad(load) => {
                    format!(
                        "load {} {} {}",
                        load.instance,
                        String::from_utf8_lossy(load.path),
                        load.flags.bits()
                    )
                }
                Event::ModuleUnload { instance, time } => format!("unload {instance} at {}", time.0),
                other => format!("{other:?}"),
            });
        }
    }

    fn seen(base: u64, path: &str) -> ModuleSighting {
        ModuleSighting { base, size: 0x1000, path: path.as_bytes().to_vec() }
    }

    fn loaded(base: u64, path: &str) -> Change {
        Change::Loaded { time: Ticks(5), seen: seen(base, path), path_cut: false, print: None, ticket: 0 }
    }

    fn unloaded(base: u64) -> Change {
        Change::Unloaded { time: Ticks(6), base, rescued: None }
    }

    fn write(known: Option<&Modules>, ids: &AtomicU64, changes: &[Change]) -> Vec<String> {
        let (mut last, mut log) = (LastModules::new(known, ids), LastModulesLog::default());
        for change in changes {
            last.write(change, &mut log);
        }
        log.0
    }

    #[test]
    fn the_last_loads_and_unloads_are_written_unless_already_known() {
        let mut modules = Modules::default();
        modules.loaded(
            Ticks(1),
            seen(0x1000, "a.dll"),
            ModuleFlags::NOTIFIED,
            (None, None),
            &mut LastModulesLog::default(),
        );
        let ids = modules.ids();
        let changes = [
            loaded(0x1000, "a.dll"),
            loaded(0x2000, "b.dll"),
            unloaded(0x2000),
            loaded(0x2000, "c.dll"),
            unloaded(0x1000),
            unloaded(0x9000),
        ];
        let expected = ["load 2 b.dll 6", "unload 2 at 6", "load 3 c.dll 6", "unload 1 at 6"];
        assert_eq!(write(Some(&modules), &ids, &changes), expected);
        assert_eq!(ids.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn new_modules_are_written_without_the_list_of_known_modules() {
        let ids = AtomicU64::new(7);
        let changes = [unloaded(0x1000), loaded(0x2000, "b.dll"), unloaded(0x2000)];
        assert_eq!(write(None, &ids, &changes), ["load 7 b.dll 6", "unload 7 at 6"]);
    }

    #[test]
    fn the_number_of_written_loads_is_limited() {
        let ids = AtomicU64::new(1);
        let (mut last, mut log) = (LastModules::new(None, &ids), LastModulesLog::default());
        for base in 1..=MOST as u64 + 3 {
            assert_eq!(last.has_room(), base <= MOST as u64);
            last.write(&loaded(base << 16, "x.dll"), &mut log);
        }
        assert_eq!(log.0.len(), MOST);
    }
}
