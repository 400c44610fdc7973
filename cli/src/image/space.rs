//! Images at their addresses.

use super::ModuleImage;
use crate::trace::View;
use stk_unwind::{Found, ModuleId, Modules};

/// The address space at the moment that a [`View`] shows. A [`ModuleId`] is an index in the timeline's modules.
#[derive(Clone, Copy, Debug)]
pub struct AddressSpace<'a, 't> {
    view: &'a View<'t>,
    images: &'a [ModuleImage],
}

impl<'a, 't> AddressSpace<'a, 't> {
    /// The modules of `view`; `images` are those of its timeline, in its order.
    pub fn new(view: &'a View<'t>, images: &'a [ModuleImage]) -> AddressSpace<'a, 't> {
        AddressSpace { view, images }
    }
}

impl Modules for AddressSpace<'_, '_> {
    fn find(&self, address: u64) -> Option<Found<'_>> {
        let live = self.view.find(address)?;
        Some(Found {
            module: ModuleId(live.module),
            base: live.base,
            image: &self.images[live.image.0 as usize].tables,
            image_key: live.image.0,
        })
    }
}
