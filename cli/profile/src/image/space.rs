//! Images and dynamic code at their addresses.

use super::ModuleImage;
use crate::trace::{Timeline, TimelineCursor};
use stk_base::model::{CodeOwner, DYNAMIC_CODE, ImageId};
use stk_unwind::{LoadedModule, ModuleId, Modules};

/// The address space at the moment of a [`TimelineCursor`]. A [`ModuleId`] is that of a
/// [`CodeOwner`].
#[derive(Clone, Copy, Debug)]
pub struct ModuleMap<'a, 't> {
    view: &'a TimelineCursor<'t>,
    images: &'a [ModuleImage],
}

/// First key of code regions in the walker's cache, above the keys of any number of images.
const CODE_KEYS: u32 = 1 << 29;

impl<'a, 't> ModuleMap<'a, 't> {
    /// The modules and code of `view`. `images` are those of its timeline, in its order.
    pub fn new(view: &'a TimelineCursor<'t>, images: &'a [ModuleImage]) -> ModuleMap<'a, 't> {
        ModuleMap { view, images }
    }
}

impl Modules for ModuleMap<'_, '_> {
    fn find(&self, address: u64) -> Option<LoadedModule<'_>> {
        if let Some(live) = self.view.find(address) {
            return Some(LoadedModule {
                module: CodeOwner::Module(live.module).id(),
                base: live.base,
                image: &self.images[live.image.0 as usize].tables,
                image_key: live.image.0,
            });
        }
        let region = self.view.find_code(address)?;
        let code = self.view.timeline().code.get(region as usize)?;
        Some(LoadedModule {
            module: CodeOwner::Code(region).id(),
            base: code.base,
            image: &code.tables,
            image_key: CODE_KEYS | region & (CODE_KEYS - 1),
        })
    }

    fn epoch(&self) -> Option<u64> {
        Some(self.view.epoch() as u64)
    }
}

/// The image of the module with the walker's `id`; `None` in dynamic code.
pub fn image_of(timeline: &Timeline, id: ModuleId) -> Option<ImageId> {
    match CodeOwner::of(id) {
        CodeOwner::Module(module) => timeline.modules.get(module as usize).map(|module| module.image),
        CodeOwner::Code(_) => None,
    }
}

/// The base address of the module or the code with the walker's `id`.
pub fn base_of(timeline: &Timeline, id: ModuleId) -> Option<u64> {
    match CodeOwner::of(id) {
        CodeOwner::Module(module) => timeline.modules.get(module as usize).map(|module| module.base),
        CodeOwner::Code(region) => timeline.code.get(region as usize).map(|code| code.base),
    }
}

/// The file name of the module with the walker's `id`, or [`DYNAMIC_CODE`] in dynamic code.
pub fn holder_name(timeline: &Timeline, id: ModuleId) -> &str {
    match CodeOwner::of(id) {
        CodeOwner::Module(_) => {
            let record = image_of(timeline, id).and_then(|image| timeline.images.get(image.0 as usize));
            record.map_or("", |record| &record.image.name)
        }
        CodeOwner::Code(_) => DYNAMIC_CODE,
    }
}
