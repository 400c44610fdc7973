//! Writes METHOD_BODY: the whole code of methods that samples showed a part of.
//!
//! On x86 no function tables show where a method begins, and without that its callers cannot be
//! found. The data access library reports base and size with a name. The reader compares the code
//! with that of the CODE_ADD, since other code may have come to the address meanwhile.

use alloc::collections::BTreeMap;

use stk_format::blob::content_hash;
use stk_schema::event::{Event, MethodBody, MethodNameSource};
use stk_schema::identity::ContentHash;
use stk_schema::{Arch, Ticks};

use crate::record::dynamic::{MOST_CODE, UnnamedCode, read_code};
use crate::record::image::Memory;
use crate::record::modules::Events;

/// Most methods that are remembered as written. Beyond that, all are forgotten.
const MOST: usize = 16_384;
/// Bytes of GCInfo that are kept. The header has fewer than 100.
const MOST_GC_INFO: usize = 128;

/// A method as the host reports it.
pub(super) struct ReportedMethod {
    pub(super) base: u64,
    pub(super) size: u64,
    /// Address of its GCInfo; 0 = not known.
    pub(super) gc_info: u64,
}

/// The methods whose code was written.
pub(super) struct Bodies {
    arch: Arch,
    /// By base: size and code.
    written: BTreeMap<u64, (u64, ContentHash)>,
}

impl Bodies {
    pub(super) fn new(arch: Arch) -> Bodies {
        Bodies { arch, written: BTreeMap::new() }
    }

    /// Writes the method, of which `part` is known, unless its code was written already.
    pub(super) fn write(
        &mut self,
        part: &UnnamedCode,
        method: &ReportedMethod,
        time: Ticks,
        memory: &impl Memory,
        out: &mut impl Events,
    ) {
        if self.arch != Arch::X86 || part.instance == 0 {
            return;
        }
        let &ReportedMethod { base, size, gc_info } = method;
        let code = read_code(memory, base, size.min(MOST_CODE as u64) as usize);
        let written = (size, content_hash(&code));
        if code.is_empty() || self.written.get(&base) == Some(&written) {
            return;
        }
        if self.written.len() >= MOST {
            self.written.clear();
        }
        self.written.insert(base, written);
        let kept = if gc_info == 0 { 0 } else { MOST_GC_INFO };
        let gc_info = read_code(memory, gc_info, kept);
        let early = if code.len() as u64 == size { 0 } else { MethodBody::ENDS_EARLY };
        out.event(&Event::MethodBody(MethodBody {
            time,
            instance: part.instance,
            base,
            size,
            flags: MethodBody::REPORTED | early,
            source: MethodNameSource::DataAccess as u64,
            code: &code,
            gc_info: &gc_info,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const BASE: u64 = 0x500_0000;

    /// Memory from [`BASE`] on, with pages that may be missing behind it.
    struct Code(Vec<u8>);

    impl Memory for Code {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let at = address.checked_sub(BASE).and_then(|at| usize::try_from(at).ok());
            let found = at.and_then(|at| self.0.get(at..at.checked_add(into.len())?));
            found.map(|found| into.copy_from_slice(found)).is_some()
        }
    }

    #[derive(Default)]
    struct Log(Vec<(u64, u64, usize, u64)>);

    impl Events for Log {
        fn event(&mut self, event: &Event<'_>) {
            let Event::MethodBody(body) = event else { panic!("{event:?}") };
            assert_eq!((body.base, body.source), (BASE, MethodNameSource::DataAccess as u64));
            self.0.push((body.instance, body.size, body.code.len(), body.flags));
        }
    }

    fn want_at(address: u64) -> UnnamedCode {
        UnnamedCode { instance: 7, address, base: address, size: 1, executed: true, precompiled: false }
    }

    /// What is written for the parts of one method, `(instance, memory, size)` each.
    fn written(arch: Arch, parts: &[(u64, &Code, u64)]) -> Vec<(u64, u64, usize, u64)> {
        let (mut bodies, mut log) = (Bodies::new(arch), Log::default());
        for &(instance, code, size) in parts {
            let part = UnnamedCode { instance, ..want_at(BASE + 40) };
            let method = ReportedMethod { base: BASE, size, gc_info: 0 };
            bodies.write(&part, &method, Ticks(9), code, &mut log);
        }
        log.0
    }

    #[test]
    fn code_is_written_once_until_it_changes() {
        let (one, other) = (Code(alloc::vec![1; 300]), Code(alloc::vec![2; 300]));
        let parts = [(7, &one, 300), (8, &one, 300), (9, &other, 300), (10, &other, 290)];
        assert_eq!(written(Arch::X86, &parts), [(7, 300, 300, 1), (9, 300, 300, 1), (10, 290, 290, 1)]);
    }

    #[test]
    fn code_that_ends_early_is_flagged() {
        let (page, large) = (Code(alloc::vec![1; 4096]), Code(alloc::vec![1; 20_000]));
        let parts = [(7, &page, 5000), (8, &large, 20_000)];
        assert_eq!(written(Arch::X86, &parts), [(7, 5000, 4096, 5), (8, 20_000, MOST_CODE, 5)]);
    }

    #[test]
    fn missing_code_and_other_architectures_write_nothing() {
        let (none, code) = (Code(Vec::new()), Code(alloc::vec![1; 300]));
        assert!(written(Arch::X86, &[(7, &none, 300), (0, &code, 300)]).is_empty());
        assert!(written(Arch::X64, &[(7, &code, 300)]).is_empty());
    }

    #[test]
    fn gc_info_is_read_within_bounds_where_it_is_known() {
        struct Infos(Vec<Vec<u8>>);

        impl Events for Infos {
            fn event(&mut self, event: &Event<'_>) {
                let Event::MethodBody(body) = event else { panic!("{event:?}") };
                self.0.push(body.gc_info.to_vec());
            }
        }

        let memory = Code((0..=255).cycle().take(4096).collect());
        let part = want_at(BASE + 40);
        let infos = [0, BASE + 0x200, BASE + 4096 - 64, BASE + 4096, 1, u64::MAX].map(|gc_info| {
            let (mut bodies, mut log) = (Bodies::new(Arch::X86), Infos(Vec::new()));
            let method = ReportedMethod { base: BASE, size: 100, gc_info };
            bodies.write(&part, &method, Ticks(9), &memory, &mut log);
            log.0.concat()
        });
        let from =
            |start: u8, len: usize| (0..=255).cycle().skip(start.into()).take(len).collect::<Vec<u8>>();
        // What a page has, if the next one is missing; nothing at addresses without memory.
        assert_eq!(infos, [vec![], from(0, 128), from(192, 64), vec![], vec![], vec![]]);
    }
}
