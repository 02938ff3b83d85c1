//! The models that are served, by name.
//!
//! Requests hold an [`Arc`] of the model they began with, so a model can be replaced or removed at any time: the old one
//! goes when its last request has its answer.

use std::sync::{Arc, PoisonError, RwLock};

use crate::failure::{Failure, Kind};
use crate::served::Served;

/// Named models in the order of their arrival.
#[derive(Default)]
pub struct Registry {
    slots: RwLock<Vec<Slot>>,
}

struct Slot {
    name: String,
    /// `None` while it loads for the first time.
    model: Option<Arc<Served>>,
}

/// The right to load a model under a name; unless [`Reservation::fill`] is called, the name is free again on drop.
pub struct Reservation<'a> {
    registry: &'a Registry,
    name: String,
    filled: bool,
}

impl Registry {
    /// Reserves a new name.
    ///
    /// # Errors
    /// [`Kind::Conflict`] when it is taken.
    pub fn reserve(&self, name: &str) -> Result<Reservation<'_>, Failure> {
        let mut slots = self.write();
        if slots.iter().any(|slot| slot.name == name) {
            let text = format!("a model `{name}` is loaded already; DELETE it first, or reload it");
            return Err(Failure::new(Kind::Conflict, text));
        }
        slots.push(Slot { name: name.into(), model: None });
        Ok(Reservation { registry: self, name: name.into(), filled: false })
    }

    /// A model by name, or the first one.
    ///
    /// # Errors
    /// [`Kind::NoModel`], naming those there are; [`Kind::Unavailable`] while it loads.
    pub fn get(&self, name: Option<&str>) -> Result<Arc<Served>, Failure> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let slot = match name {
            Some(name) => slots.iter().find(|slot| slot.name == name),
            None => slots.first(),
        };
        let Some(slot) = slot else {
            let names: Vec<String> = slots.iter().map(|slot| format!("`{}`", slot.name)).collect();
            let known =
                if names.is_empty() { "none is loaded".into() } else { format!("there is {}", names.join(", ")) };
            let text = match name {
                Some(name) => format!("there is no model `{name}`; {known}"),
                None => "no model is loaded".into(),
            };
            return Err(Failure::new(Kind::NoModel, text));
        };
        slot.model.clone().ok_or_else(|| {
            Failure::new(Kind::Unavailable, format!("the model `{}` is still loading", slot.name)).retry_after(1)
        })
    }

    /// Puts a newly loaded model in the place of the one of its name.
    ///
    /// # Errors
    /// [`Kind::NoModel`] when it was removed meanwhile.
    pub fn replace(&self, model: Arc<Served>) -> Result<(), Failure> {
        let mut slots = self.write();
        match slots.iter_mut().find(|slot| slot.name == model.name) {
            Some(slot) => {
                slot.model = Some(model);
                Ok(())
            }
            None => Err(Failure::new(Kind::NoModel, format!("the model `{}` was removed while it loaded", model.name))),
        }
    }

    /// Removes a model.
    ///
    /// # Errors
    /// As [`Registry::get`].
    pub fn remove(&self, name: &str) -> Result<Arc<Served>, Failure> {
        let model = self.get(Some(name))?;
        self.write().retain(|slot| slot.name != name);
        Ok(model)
    }

    /// All that are loaded.
    pub fn all(&self) -> Vec<Arc<Served>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.iter().filter_map(|slot| slot.model.clone()).collect()
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Vec<Slot>> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation<'_> {
    /// Serves the model under the reserved name from now on.
    pub fn fill(mut self, model: Arc<Served>) {
        self.filled = true;
        if let Some(slot) = self.registry.write().iter_mut().find(|slot| slot.name == self.name) {
            slot.model = Some(model);
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.filled {
            self.registry.write().retain(|slot| slot.name != self.name);
        }
    }
}
