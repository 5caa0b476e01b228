//! Reads the files of a crate into modules.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::Visit;
use syn::{Attribute, Item, ItemUse, Meta, UseTree, Visibility};

use crate::graph::Graph;
use crate::resolve;

/// A path as written, and its line.
#[derive(Debug)]
pub struct Written {
    pub path: Vec<String>,
    pub line: usize,
}

/// What a name in a module stands for.
#[derive(Debug)]
pub enum Name {
    /// An item that the module's file defines.
    Defined,
    /// An item that another file puts there (an exported macro).
    DefinedIn(usize),
    /// An import or a re-export.
    Import(Vec<String>),
}

/// A module: a file's own, or one written inline.
#[derive(Debug, Default)]
pub struct Module {
    pub path: Vec<String>,
    pub file: usize,
    pub parent: Option<usize>,
    pub children: HashMap<String, usize>,
    pub names: HashMap<String, Name>,
    /// Modules all of whose names are imported.
    pub globs: Vec<Written>,
    /// Imports, by path to the item.
    pub imports: Vec<(Written, bool)>,
    /// Paths in the code, those of one segment included.
    pub paths: Vec<Written>,
}

/// A crate's modules and files.
#[derive(Debug, Default)]
pub struct Source {
    pub modules: Vec<Module>,
    pub files: Vec<PathBuf>,
}

/// Reads the crate whose root is `root`, and computes its graph.
///
/// # Errors
/// Fails when a file is missing or does not parse.
pub fn read(root: &Path) -> Result<Graph> {
    let folder = root.parent().context("a root without a folder")?;
    let mut source = Source::default();
    source.file(root, folder, Vec::new(), None)?;
    Ok(resolve::graph(&source, folder))
}

impl Source {
    fn file(
        &mut self,
        file: &Path,
        folder: &Path,
        path: Vec<String>,
        parent: Option<usize>,
    ) -> Result<usize> {
        let text = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("{}", file.display()))?;
        self.files.push(file.to_owned());
        let number = self.files.len() - 1;
        self.module(parsed.items, number, folder, path, parent)
    }

    /// Takes in a module whose children's files stand in `folder`.
    fn module(
        &mut self,
        items: Vec<Item>,
        file: usize,
        folder: &Path,
        path: Vec<String>,
        parent: Option<usize>,
    ) -> Result<usize> {
        let this = self.modules.len();
        self.modules.push(Module {
            path,
            file,
            parent,
            ..Module::default()
        });
        for item in items {
            if is_test(attributes(&item)) {
                continue;
            }
            match item {
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    let mut path = self.modules[this].path.clone();
                    path.push(name.clone());
                    let inside = folder.join(&name);
                    let child = match item.content {
                        Some((_, items)) => self.module(items, file, &inside, path, Some(this))?,
                        None => {
                            let (file, inside) = place(&item.attrs, folder, &name);
                            self.file(&file, &inside, path, Some(this))?
                        }
                    };
                    self.modules[this].children.insert(name, child);
                }
                item => self.take(this, &item),
            }
        }
        Ok(this)
    }

    fn take(&mut self, module: usize, item: &Item) {
        if let Item::Macro(it) = item
            && it.attrs.iter().any(|it| it.path().is_ident("macro_export"))
            && let Some(name) = &it.ident
        {
            let file = self.modules[module].file;
            self.modules[0]
                .names
                .insert(name.to_string(), Name::DefinedIn(file));
        }
        let module = &mut self.modules[module];
        if let Some(name) = name(item) {
            module.names.insert(name, Name::Defined);
        }
        let mut uses = Uses { found: Vec::new() };
        uses.visit_item(item);
        let is_item = matches!(item, Item::Use(_));
        for item in uses.found {
            let is_public = !matches!(item.vis, Visibility::Inherited);
            leaves(&item.tree, &mut Vec::new(), &mut |path, alias, line| {
                let written = Written {
                    path: path.to_vec(),
                    line,
                };
                let Some(alias) = alias else {
                    module.globs.push(written);
                    return;
                };
                if is_item || !module.names.contains_key(alias) {
                    let path = path.to_vec();
                    module.names.insert(alias.to_owned(), Name::Import(path));
                }
                module.imports.push((written, is_public));
            });
        }
        if !matches!(item, Item::Use(_)) {
            paths(item.to_token_stream(), &mut module.paths);
        }
    }
}

/// Returns the file of a child module, and the folder of its own children.
fn place(attributes: &[Attribute], folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    for attribute in attributes {
        if attribute.path().is_ident("path")
            && let Meta::NameValue(it) = &attribute.meta
            && let syn::Expr::Lit(it) = &it.value
            && let syn::Lit::Str(it) = &it.lit
        {
            let file = folder.join(it.value());
            let inside = file.parent().unwrap_or(folder).to_owned();
            return (file, inside);
        }
    }
    let file = folder.join(format!("{name}.rs"));
    let inside = folder.join(name);
    if file.exists() {
        (file, inside)
    } else {
        (inside.join("mod.rs"), inside)
    }
}

/// Whether the item exists in tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|it| {
        let Meta::List(list) = &it.meta else {
            return it.path().is_ident("test");
        };
        let condition = list.tokens.to_string();
        it.path().is_ident("cfg") && (condition == "test" || condition.starts_with("all (test"))
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

fn name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(it) => &it.ident,
        Item::Enum(it) => &it.ident,
        Item::Fn(it) => &it.sig.ident,
        Item::Macro(it) => it.ident.as_ref()?,
        Item::Static(it) => &it.ident,
        Item::Struct(it) => &it.ident,
        Item::Trait(it) => &it.ident,
        Item::TraitAlias(it) => &it.ident,
        Item::Type(it) => &it.ident,
        Item::Union(it) => &it.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Gathers the `use` items in an item, those of function bodies included.
struct Uses<'a> {
    found: Vec<&'a ItemUse>,
}

impl<'a> Visit<'a> for Uses<'a> {
    fn visit_item_use(&mut self, item: &'a ItemUse) {
        self.found.push(item);
    }
}

/// Calls `each` with the path of every leaf of an import, its name here (none for `*`), and its
/// line.
fn leaves(
    tree: &UseTree,
    above: &mut Vec<String>,
    each: &mut impl FnMut(&[String], Option<&str>, usize),
) {
    match tree {
        UseTree::Path(it) => {
            above.push(it.ident.to_string());
            leaves(&it.tree, above, each);
            above.pop();
        }
        UseTree::Group(it) => it.items.iter().for_each(|it| leaves(it, above, each)),
        UseTree::Glob(it) => each(above, None, it.star_token.spans[0].start().line),
        UseTree::Name(it) if it.ident == "self" => {
            let alias = above.last().cloned();
            each(above, alias.as_deref(), it.ident.span().start().line);
        }
        UseTree::Name(it) => {
            let name = it.ident.to_string();
            above.push(name.clone());
            each(above, Some(&name), it.ident.span().start().line);
            above.pop();
        }
        UseTree::Rename(it) => {
            let is_self = it.ident == "self";
            if !is_self {
                above.push(it.ident.to_string());
            }
            each(
                above,
                Some(&it.rename.to_string()),
                it.ident.span().start().line,
            );
            if !is_self {
                above.pop();
            }
        }
    }
}

/// Gathers the paths among the tokens, names of fields and methods excepted.
fn paths(tokens: TokenStream, found: &mut Vec<Written>) {
    let mut current: Vec<String> = Vec::new();
    let mut line = 0;
    let mut colons = 0;
    let mut end = |current: &mut Vec<String>, line| {
        let path = std::mem::take(current);
        if !path.is_empty() {
            found.push(Written { path, line });
        }
    };
    let mut is_field = false;
    let mut groups = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Ident(_) if is_field => is_field = false,
            TokenTree::Ident(it) => {
                if colons != 2 {
                    end(&mut current, line);
                    line = it.span().start().line;
                }
                current.push(it.to_string());
                colons = 0;
            }
            TokenTree::Punct(it) if it.as_char() == ':' => colons += 1,
            other => {
                end(&mut current, line);
                colons = 0;
                // One dot, not a range.
                is_field =
                    matches!(&other, TokenTree::Punct(it) if it.as_char() == '.') && !is_field;
                if let TokenTree::Group(it) = other {
                    groups.push(it.stream());
                }
            }
        }
    }
    end(&mut current, line);
    groups.into_iter().for_each(|it| paths(it, found));
}
