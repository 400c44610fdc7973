//! The tables of modules' images, read from memory or from the copy made when a module was
//! unloaded.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use stk_schema::control::{EMBED_FULL, EMBED_NONE};
use stk_schema::event::ImageTable;

use super::{TablesRecorder, loader};
use crate::record::image::{Image, ImagePart, Memory};
use crate::record::rescue::RescueCopy;
use crate::windows::shared::state::SIGNALS;

impl TablesRecorder {
    /// Reads and writes the tables of a module.
    pub(super) fn read_tables(&mut self, instance: u64) {
        // Taken out of the list while its tables are read.
        let (image, memory) = (self.modules.take_image(instance), self.memory);
        let tables = image.as_ref().map(|image| self.store_tables(image, &memory)).unwrap_or_default();
        self.modules.put_image(instance, image);
        // The loader reports an unload before it unmaps. If it has reported none by now, the tables
        // that were read belong to this module.
        self.drain_loader();
        let tables = if self.is_replaced(instance) { Vec::new() } else { tables };
        if self.modules.get(instance).is_some_and(|module| module.image.is_some()) {
            loader::tables_read(self.tickets.take(instance));
        }
        self.modules.tables_recorded(instance, tables, &mut self.journal);
        SIGNALS.tables_pending.fetch_sub(1, Ordering::AcqRel);
    }

    /// Writes the configured parts of an image.
    fn store_tables(&mut self, image: &Image, memory: &impl Memory) -> Vec<ImageTable> {
        let mut tables = Vec::new();
        let embed = self.settings.embed;
        let (contents, journal, folder) = (&mut self.contents, &mut self.journal, &mut self.settings.folder);
        let mut store = |part: ImagePart| tables.push(contents.put(&part, folder.as_mut(), journal));
        if embed != EMBED_NONE {
            image.unwind_parts(memory, &mut store);
        }
        if embed == EMBED_FULL {
            image.code_parts(memory, &mut store);
        }
        tables
    }

    /// Writes the tables of the unloaded module at `base` from the copy made when it was unloaded.
    pub(super) fn use_rescued(&mut self, base: u64, rescued: &RescueCopy) {
        let Some(arena) = loader::arena() else { return };
        let Some(module) = self.modules.based_at(base).filter(|module| !module.has_tables()) else { return };
        let (instance, known) = (module.instance, module.identity());
        let memory = rescued.image(arena);
        let (base, size) = rescued.place();
        let image = Image::read(&memory, base, size);
        if let Some(image) = image.filter(|image| known.is_none_or(|known| known == image.identity)) {
            let tables = self.store_tables(&image, &memory);
            self.modules.tables_recorded(instance, tables, &mut self.journal);
        }
    }
}
