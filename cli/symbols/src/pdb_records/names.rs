//! Qualified names of inlined functions, from the records of types and ids.

use super::RecordsError;
use pdb::{FallibleIterator, IdData, TypeData};
use std::collections::HashMap;
use std::fs::File;

/// Names by id.
pub(super) struct InlineNames(HashMap<u32, String>);

impl InlineNames {
    pub(super) fn read(pdb: &mut pdb::PDB<'_, File>) -> Result<InlineNames, RecordsError> {
        let types = pdb.type_information()?;
        let mut finder = types.finder();
        let mut records = types.iter();
        while records.next()?.is_some() {
            finder.update(&records);
        }
        let ids = pdb.id_information()?;
        let mut names = HashMap::new();
        let mut scopes: HashMap<u32, String> = HashMap::new();
        let mut records = ids.iter();
        while let Some(id) = records.next()? {
            let name = match id.parse() {
                Ok(IdData::String(scope)) => {
                    scopes.insert(id.index().0, scope.name.to_string().into_owned());
                    continue;
                }
                Ok(IdData::Function(function)) => {
                    let name = function.name.to_string().into_owned();
                    let scope = function.scope.and_then(|scope| scopes.get(&scope.0));
                    scope.map_or(name.clone(), |scope| format!("{scope}::{name}"))
                }
                Ok(IdData::MemberFunction(function)) => {
                    let class = match finder.find(function.parent)?.parse()? {
                        TypeData::Class(class) => class.name,
                        TypeData::Union(union) => union.name,
                        TypeData::Enumeration(enumeration) => enumeration.name,
                        _ => continue,
                    };
                    format!("{class}::{}", function.name)
                }
                _ => continue,
            };
            names.insert(id.index().0, name);
        }
        Ok(InlineNames(names))
    }

    /// The name of a function. Without one, the same text as in the index.
    pub(super) fn name(&self, id: pdb::IdIndex) -> String {
        self.0.get(&id.0).cloned().unwrap_or_else(|| "<inline function>".to_owned())
    }
}
