//! Finds which method's code was at an address, and when.
//!
//! Runtimes free code and use its addresses again. Their lists are valid for one moment: a method
//! in a list was there then, and had been there for some time. So each method has the first and the
//! last moment at which it is known to have been there and, if the runtime reported them, the
//! bounds outside of which it was not. If several methods fit an address at a time and nothing
//! decides between them, the lookup reports an ambiguity.

use std::collections::HashMap;
use std::sync::Arc;

/// Index of a method in a [`MethodMap`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct MethodId(pub u32);

/// The kind of a piece of a runtime's code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MethodKind {
    /// Compiled from a method of the program or a library.
    Managed,
    /// Made by the runtime: marshalling, delegates, dispatch.
    Stub,
}

/// A module (assembly file) of managed code.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct ManagedModule {
    /// Path of the assembly with the IL, as recorded; empty if unknown.
    pub path: String,
    /// GUID of its portable PDB; zero if it has none.
    pub pdb_guid: [u8; 16],
    /// Path of the PDB, in the compiler's form.
    pub pdb_path: String,
}

impl ManagedModule {
    /// Its file's name without the extension; empty if unknown.
    pub fn stem(&self) -> &str {
        let name = self.file_name();
        name.rsplit_once('.').map_or(name, |(stem, _)| stem)
    }

    /// Its file's name; empty if unknown.
    pub fn file_name(&self) -> &str {
        stk_base::model::file_name(&self.path)
    }
}

/// Maps a method's code to its IL, whose lines are in the PDB.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CodeLines {
    /// `(native offset, IL offset)`, sorted by native offset. IL offsets below 0 are −1 (no IL),
    /// −2 (prologue), −3 (epilogue).
    pub offsets: Vec<(u32, i32)>,
}

impl CodeLines {
    /// The IL offset that a native offset (bytes from the beginning of the code) belongs to.
    pub fn il_offset(&self, native: u32) -> Option<i32> {
        let after = self.offsets.partition_point(|(start, _)| *start <= native);
        self.offsets[..after].last().map(|(_, il)| *il)
    }
}

/// The code of a method at one address.
#[derive(Clone, PartialEq, Debug)]
pub struct Method {
    /// The runtime's own number of it (.NET: the address of its MethodDesc); 0 if unknown.
    pub id: u64,
    /// First address.
    pub base: u64,
    /// Length in bytes.
    pub size: u32,
    /// `Module!Namespace.Type.Method(signature)`.
    pub name: Arc<str>,
    /// The kind of its code.
    pub kind: MethodKind,
    /// How far it is optimised, in the runtime's own term; empty if unknown.
    pub tier: &'static str,
    /// Index in the list of managed modules.
    pub module: Option<u32>,
    /// Metadata token of the method; 0 if it has none.
    pub token: u32,
    /// Maps its addresses to IL offsets.
    pub lines: Option<Arc<CodeLines>>,
    /// When it was or may have been there.
    pub span: Span,
}

/// When something was there, in nanoseconds since the trace's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// It was certainly not there before.
    pub not_before: u64,
    /// First moment at which it is known to have been there.
    pub first: u64,
    /// Last moment at which it is known to have been there.
    pub last: u64,
    /// It was certainly not there from then on.
    pub gone: u64,
}

impl Span {
    /// It was seen at a moment. Nothing is known about before and after.
    pub fn seen(time: u64) -> Span {
        Span { not_before: 0, first: time, last: time, gone: u64::MAX }
    }

    /// It was loaded at `time`.
    pub fn from(time: u64) -> Span {
        Span { not_before: time, ..Span::seen(time) }
    }

    /// Whether it may have been there at some time from `from` to `until`, both inclusive.
    fn may(&self, from: u64, until: u64) -> bool {
        self.not_before <= until && from < self.gone
    }

    /// Whether it is known to have been there at some time from `from` to `until`.
    fn was(&self, from: u64, until: u64) -> bool {
        self.first <= until && from <= self.last && from < self.gone
    }

    fn join(&mut self, other: &Span) {
        // It was seen before it was loaded again, so it had been there all the time.
        self.not_before = self.not_before.min(other.not_before);
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.gone = self.gone.max(other.gone);
    }
}

/// Several methods were at an address, and which of them was there at the time is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ambiguity {
    /// Two of them.
    pub methods: [MethodId; 2],
}

/// Methods by address and time. Add all, then call [`MethodMap::finish`], then look up.
#[derive(Default, Debug)]
pub struct MethodMap {
    methods: Vec<Method>,
    known: HashMap<(u64, u32, Arc<str>), u32>,
    /// The latest method that begins at an address.
    latest: HashMap<u64, u32>,
    /// Indices by `base`; then, for each, the highest end of it and all before.
    order: Vec<(u32, u64)>,
}

/// Limit for the methods that one address is compared with. Real processes have fewer over each
/// other.
const MOST_OVERLAPPING: usize = 256;

impl MethodMap {
    /// Adds a method. If one with the same address, size and name is known, it is the same method,
    /// seen again.
    pub fn add(&mut self, method: Method) {
        if method.size == 0 {
            return;
        }
        let key = (method.base, method.size, method.name.clone());
        let next = self.methods.len() as u32;
        self.latest.insert(method.base, self.known.get(&key).copied().unwrap_or(next));
        match self.known.get(&key) {
            Some(&at) => {
                let known = &mut self.methods[at as usize];
                known.span.join(&method.span);
                if method.lines.is_some() {
                    known.lines = method.lines;
                }
                if !method.tier.is_empty() {
                    known.tier = method.tier;
                }
            }
            None => {
                self.known.insert(key, next);
                self.methods.push(method);
            }
        }
    }

    /// Notes that the code that began at `base` was removed at `time`.
    pub fn remove(&mut self, base: u64, time: u64) {
        if let Some(&at) = self.latest.get(&base) {
            let span = &mut self.methods[at as usize].span;
            if span.last <= time {
                span.gone = time;
            }
        }
    }

    /// Makes the map ready for lookups.
    pub fn finish(&mut self) {
        (self.known, self.latest) = (HashMap::new(), HashMap::new());
        let mut order: Vec<u32> = (0..self.methods.len() as u32).collect();
        order.sort_by_key(|&i| (self.methods[i as usize].base, i));
        let mut highest = 0;
        self.order = order
            .into_iter()
            .map(|i| {
                highest = highest.max(end(&self.methods[i as usize]));
                (i, highest)
            })
            .collect();
    }

    /// Whether there are no methods.
    pub fn is_empty(&self) -> bool {
        self.methods.is_empty()
    }

    /// All methods; index = id.
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    pub fn get(&self, id: MethodId) -> &Method {
        &self.methods[id.0 as usize]
    }

    /// The name of the method with the runtime's id `id`, at whatever address. `None` if no method,
    /// or methods of different names, have it.
    pub fn name_of(&self, id: u64) -> Option<&str> {
        let mut named = self.methods.iter().filter(|method| method.id == id && id != 0);
        let name = &named.next()?.name;
        named.all(|other| other.name == *name).then_some(name)
    }

    /// Whether any method's code lay, at any time, between `base` and `base + size`.
    pub fn any_within(&self, base: u64, size: u64) -> bool {
        let last = base.saturating_add(size.saturating_sub(1));
        let after = self.order.partition_point(|&(i, _)| self.methods[i as usize].base <= last);
        after > 0 && self.order[after - 1].1 > base
    }

    /// The method whose code held `address` at some time from `from` to `until` (inclusive, in
    /// nanoseconds since the trace's start).
    ///
    /// # Errors
    ///
    /// When several did: which of them is unknown.
    pub fn find(&self, address: u64, from: u64, until: u64) -> Result<Option<MethodId>, Ambiguity> {
        let after = self.order.partition_point(|&(i, _)| self.methods[i as usize].base <= address);
        let fits = self.order[..after]
            .iter()
            .rev()
            .take_while(|(_, highest)| *highest > address)
            .take(MOST_OVERLAPPING)
            .map(|&(i, _)| MethodId(i))
            .filter(|&id| {
                let method = self.get(id);
                address < end(method) && method.span.may(from, until)
            });
        let fits: Vec<MethodId> = fits.collect();
        let certain = || fits.iter().copied().filter(|&id| self.get(id).span.was(from, until));
        match (fits.as_slice(), certain().count()) {
            ([], _) => Ok(None),
            ([only], _) => Ok(Some(*only)),
            (_, 1) => Ok(certain().next()),
            ([one, other, ..], _) => Err(Ambiguity { methods: [*one, *other] }),
        }
    }
}

fn end(method: &Method) -> u64 {
    method.base.saturating_add(method.size.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(base: u64, size: u32, name: &str, span: Span) -> Method {
        Method {
            id: 0,
            base,
            size,
            name: name.into(),
            kind: MethodKind::Managed,
            tier: "",
            module: None,
            token: 0,
            lines: None,
            span,
        }
    }

    fn map(methods: impl IntoIterator<Item = Method>) -> MethodMap {
        let mut map = MethodMap::default();
        methods.into_iter().for_each(|method| map.add(method));
        map.finish();
        map
    }

    fn name(map: &MethodMap, address: u64, from: u64, until: u64) -> Option<&str> {
        map.find(address, from, until).expect("certain").map(|id| &*map.get(id).name)
    }

    #[test]
    fn an_address_between_two_methods_has_none() {
        let map = map([method(100, 10, "a", Span::seen(5)), method(120, 10, "b", Span::seen(5))]);
        let at = |address| name(&map, address, 0, u64::MAX);
        assert_eq!((at(99), at(100), at(109)), (None, Some("a"), Some("a")));
        assert_eq!((at(110), at(119), at(120), at(130)), (None, None, Some("b"), None));
        assert!(map.any_within(105, 1) && map.any_within(0, 101) && map.any_within(110, 11));
        assert!(!map.any_within(0, 100) && !map.any_within(130, 1000));
    }

    #[test]
    fn a_reused_address_is_named_by_the_method_at_the_time() {
        let map = map([
            method(100, 10, "old", Span { gone: 50, ..Span::seen(20) }),
            method(90, 40, "new", Span::from(60)),
        ]);
        assert_eq!(name(&map, 105, 10, 30), Some("old"));
        assert_eq!(name(&map, 105, 60, 90), Some("new"));
        assert_eq!(name(&map, 105, 52, 55), None);
        assert_eq!(name(&map, 91, 10, 30), None);
    }

    #[test]
    fn a_method_seen_in_two_lists_was_there_between_them() {
        let map = map([
            method(100, 10, "a", Span::seen(20)),
            method(100, 10, "a", Span::seen(40)),
            method(100, 10, "b", Span::seen(80)),
        ]);
        assert_eq!(map.methods().len(), 2);
        assert_eq!(name(&map, 100, 30, 31), Some("a"));
        assert_eq!(name(&map, 100, 80, 81), Some("b"));
        let between = map.find(100, 50, 60).expect_err("neither was seen at that time");
        let names = between.methods.map(|id| map.get(id).name.to_string());
        assert!(names.contains(&"a".to_owned()) && names.contains(&"b".to_owned()));
        assert!(map.find(100, 0, u64::MAX).is_err(), "both were there at some time");
    }

    #[test]
    fn removed_code_is_gone() {
        let mut methods = MethodMap::default();
        methods.add(method(100, 10, "a", Span::from(20)));
        methods.remove(100, 30);
        methods.add(method(100, 10, "b", Span::from(40)));
        methods.finish();
        assert_eq!(name(&methods, 100, 25, 26), Some("a"));
        assert_eq!(name(&methods, 100, 45, 46), Some("b"));
    }

    #[test]
    fn a_native_offset_belongs_to_the_map_entry_before_it() {
        let lines = CodeLines { offsets: vec![(0, -2), (4, 0), (9, 7), (20, -3)] };
        assert_eq!(
            [0, 3, 4, 8, 9, 19, 20, 900].map(|at| lines.il_offset(at)),
            [Some(-2), Some(-2), Some(0), Some(0), Some(7), Some(7), Some(-3), Some(-3)]
        );
        assert_eq!(CodeLines::default().il_offset(0), None);
    }
}
