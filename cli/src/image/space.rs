//! Images and dynamic code at their addresses.

use super::ModuleImage;
use crate::trace::View;
use stk_unwind::{Found, ModuleId, Modules};

/// The address space at the moment that a [`View`] shows. A [`ModuleId`] is a [`Holder`]'s.
#[derive(Clone, Copy, Debug)]
pub struct AddressSpace<'a, 't> {
    view: &'a View<'t>,
    images: &'a [ModuleImage],
}

/// What holds an address, as the walker numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A module: index in the timeline's modules.
    Module(u32),
    /// A dynamic code region: index in the timeline's code.
    Code(u32),
}

/// Tells code regions from modules in a [`ModuleId`]. A trace has fewer events than this.
const CODE: u32 = 1 << 31;
/// Code regions' keys of the walker's cache begin here, above those of any number of images.
const CODE_KEYS: u32 = 1 << 29;

impl Holder {
    /// What an id stands for.
    pub fn of(id: ModuleId) -> Holder {
        if id.0 & CODE == 0 { Holder::Module(id.0) } else { Holder::Code(id.0 & !CODE) }
    }

    /// Its id.
    pub fn id(self) -> ModuleId {
        match self {
            Holder::Module(module) => ModuleId(module),
            Holder::Code(region) => ModuleId(region | CODE),
        }
    }
}

impl<'a, 't> AddressSpace<'a, 't> {
    /// The modules and code of `view`; `images` are those of its timeline, in its order.
    pub fn new(view: &'a View<'t>, images: &'a [ModuleImage]) -> AddressSpace<'a, 't> {
        AddressSpace { view, images }
    }
}

impl Modules for AddressSpace<'_, '_> {
    fn find(&self, address: u64) -> Option<Found<'_>> {
        if let Some(live) = self.view.find(address) {
            return Some(Found {
                module: Holder::Module(live.module).id(),
                base: live.base,
                image: &self.images[live.image.0 as usize].tables,
                image_key: live.image.0,
            });
        }
        let region = self.view.find_code(address)?;
        let code = self.view.timeline().code.get(region as usize)?;
        Some(Found {
            module: Holder::Code(region).id(),
            base: code.base,
            image: &code.tables,
            image_key: CODE_KEYS | region & (CODE_KEYS - 1),
        })
    }
}
