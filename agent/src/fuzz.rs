//! Entries for the fuzz targets of tests/fuzz.

use alloc::vec::Vec;

use crate::record::dotnet::contract::{Contract, FrameMethods};
use crate::record::dotnet::descriptor::Descriptor;
use crate::record::dotnet::threads::Layout;
use crate::record::image::Memory;
use crate::record::modules::Events;
use stk_schema::Ticks;
use stk_schema::event::Event;

/// Memory in pieces: address and bytes of each. They must not overlap.
pub struct Pieces<'a>(pub &'a [(u64, Vec<u8>)]);

impl Memory for Pieces<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.0.iter().any(|(start, bytes)| {
            let at = address.checked_sub(*start).and_then(|at| usize::try_from(at).ok());
            let end = at.and_then(|at| at.checked_add(into.len()));
            let Some(found) = at.zip(end).and_then(|(at, end)| bytes.get(at..end)) else { return false };
            into.copy_from_slice(found);
            true
        })
    }
}

/// Lengths of the names that were written.
struct NameLengths(Vec<usize>);

impl Events for NameLengths {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::FrameMethod(method) = event {
            self.0.push(method.name.len());
        }
    }
}

/// Names the methods that explicit Frames are about, by a 64-bit runtime's descriptor.
pub struct FrameNames {
    layout: Option<Layout>,
    contract: Option<Contract>,
}

impl FrameNames {
    /// By this descriptor, whose text takes longer to read than what follows.
    pub fn new(json: &[u8], pointer_data: &[u64]) -> FrameNames {
        let descriptor = Descriptor { width: 8, json: json.to_vec(), pointer_data: pointer_data.to_vec() };
        FrameNames { layout: Layout::new(&descriptor), contract: Contract::new(&descriptor) }
    }

    /// Names the methods that the explicit Frames from `head` on a stack call, and those at
    /// `methods`. Returns the lengths of the names.
    pub fn names(
        &self,
        memory: &Pieces<'_>,
        (head, stack_start, stack): (u64, u64, &[u8]),
        methods: &[u64],
    ) -> Vec<usize> {
        let mut wanted = methods.to_vec();
        if let Some(layout) = &self.layout {
            layout.outside(head, stack_start, stack, |method| wanted.push(method));
        }
        let mut names = NameLengths(Vec::new());
        if let Some(contract) = &self.contract {
            let mut frames = FrameMethods::default();
            while frames.step((contract, 1), memory, Ticks(1), || wanted.pop(), &mut names) {}
        }
        names.0
    }
}
