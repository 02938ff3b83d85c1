//! The models that are served, by name.
//!
//! Requests hold an [`Arc`] of the model they began with, so a model can be replaced or removed at any time: the old one
//! goes when its last request has its answer. One model loads at a time ([`Registry::turn`]), and each under a
//! [`Reservation`], which counts its memory from before it is taken and touches no other model's place.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::{Mutex, MutexGuard};

use crate::failure::{Failure, Kind};
use crate::options::ModelSpec;
use crate::served::Served;

/// Named models in the order of their arrival.
#[derive(Default)]
pub struct Registry {
    slots: RwLock<Slots>,
    loading: Mutex<()>,
}

#[derive(Default)]
struct Slots {
    next_id: u64,
    each: Vec<Slot>,
}

struct Slot {
    /// Not a later slot's of the same name.
    id: u64,
    spec: ModelSpec,
    /// `None` while it loads for the first time.
    model: Option<Arc<Served>>,
    /// Bytes that `model` takes.
    bytes: u64,
    /// Bytes of what loads under a reservation; `None` where nothing does.
    loading: Option<u64>,
}

/// The right to load a model under a name. Unless [`Reservation::fill`] is called, everything is on drop as it was before.
pub struct Reservation<'a> {
    registry: &'a Registry,
    id: u64,
}

impl Registry {
    /// Reserves a new name.
    ///
    /// # Errors
    /// [`Kind::Conflict`] when it is taken.
    pub fn reserve(&self, spec: &ModelSpec) -> Result<Reservation<'_>, Failure> {
        let mut slots = self.write();
        if slots.each.iter().any(|slot| slot.spec.name == spec.name) {
            let text = format!("a model `{}` is loaded already; DELETE it first, or reload it", spec.name);
            return Err(Failure::new(Kind::Conflict, text));
        }
        let id = slots.next_id;
        slots.next_id += 1;
        slots.each.push(Slot { id, spec: spec.clone(), model: None, bytes: 0, loading: Some(0) });
        Ok(Reservation { registry: self, id })
    }

    /// Reserves a model's name to load it anew, and tells from where.
    ///
    /// # Errors
    /// [`Kind::NoModel`]; [`Kind::Conflict`] when it is being loaded already.
    pub fn reserve_again(&self, name: &str) -> Result<(Reservation<'_>, ModelSpec), Failure> {
        let mut slots = self.write();
        let Some(slot) = slots.each.iter_mut().find(|slot| slot.spec.name == name) else {
            return Err(slots.no_model(Some(name)));
        };
        if slot.loading.is_some() {
            let text = format!("the model `{name}` is being loaded already; wait until that has ended");
            return Err(Failure::new(Kind::Conflict, text));
        }
        slot.loading = Some(0);
        Ok((Reservation { registry: self, id: slot.id }, slot.spec.clone()))
    }

    /// Waits for the turn to load a model, which ends when the guard is dropped: two at a time would take the memory of two.
    pub async fn turn(&self) -> MutexGuard<'_, ()> {
        self.loading.lock().await
    }

    /// A model by name, or the first one.
    ///
    /// # Errors
    /// [`Kind::NoModel`], naming those there are; [`Kind::Unavailable`] while it loads.
    pub fn get(&self, name: Option<&str>) -> Result<Arc<Served>, Failure> {
        let slots = self.read();
        let slot = match name {
            Some(name) => slots.each.iter().find(|slot| slot.spec.name == name),
            None => slots.each.first(),
        };
        let Some(slot) = slot else { return Err(slots.no_model(name)) };
        slot.model.clone().ok_or_else(|| {
            Failure::new(Kind::Unavailable, format!("the model `{}` is still loading", slot.spec.name)).retry_after(1)
        })
    }

    /// Removes a model, loaded or still loading, and tells what it was.
    ///
    /// # Errors
    /// [`Kind::NoModel`].
    pub fn remove(&self, name: &str) -> Result<ModelSpec, Failure> {
        let mut slots = self.write();
        match slots.each.iter().position(|slot| slot.spec.name == name) {
            Some(index) => Ok(slots.each.remove(index).spec),
            None => Err(slots.no_model(Some(name))),
        }
    }

    /// Removes all of them.
    pub fn clear(&self) {
        self.write().each.clear();
    }

    /// All that are loaded.
    pub fn all(&self) -> Vec<Arc<Served>> {
        self.read().each.iter().filter_map(|slot| slot.model.clone()).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Slots> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slots> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn no_model(&self, name: Option<&str>) -> Failure {
        let names: Vec<String> = self.each.iter().map(|slot| format!("`{}`", slot.spec.name)).collect();
        let known = if names.is_empty() { "none is loaded".into() } else { format!("there is {}", names.join(", ")) };
        let text = match name {
            Some(name) => format!("there is no model `{name}`; {known}"),
            None => "no model is loaded".into(),
        };
        Failure::new(Kind::NoModel, text)
    }
}

impl Reservation<'_> {
    /// Counts the bytes that the model will take. With a limit, they and those of all other models must stay within it; while
    /// a model is loaded anew, its old bytes do not count.
    ///
    /// # Errors
    /// [`Kind::Memory`]; as [`Reservation::fill`].
    pub fn claim(&self, bytes: u64, limit: Option<u64>) -> Result<(), Failure> {
        let mut slots = self.registry.write();
        let others = slots.each.iter().filter(|slot| slot.id != self.id);
        let others = others.fold(0u64, |sum, slot| sum.saturating_add(slot.bytes.max(slot.loading.unwrap_or(0))));
        if let Some(limit) = limit.filter(|&limit| others.saturating_add(bytes) > limit) {
            let text = format!(
                "the model needs about {bytes} bytes and the others take {others}, of {limit} that all may take \
                 (--model-memory); unload another model first"
            );
            return Err(Failure::new(Kind::Memory, text));
        }
        self.slot(&mut slots)?.loading = Some(bytes);
        Ok(())
    }

    /// Serves the model under the reserved name from now on.
    ///
    /// # Errors
    /// [`Kind::NoModel`] when it was removed meanwhile; then it is not served.
    pub fn fill(self, model: Arc<Served>) -> Result<(), Failure> {
        let mut slots = self.registry.write();
        let slot = self.slot(&mut slots)?;
        slot.bytes = slot.loading.unwrap_or(0);
        let old = slot.model.replace(model);
        // `self` and the old model go after the lock, which the first takes.
        drop(slots);
        drop(old);
        Ok(())
    }

    fn slot<'s>(&self, slots: &'s mut Slots) -> Result<&'s mut Slot, Failure> {
        slots.each.iter_mut().find(|slot| slot.id == self.id).ok_or_else(|| {
            Failure::new(Kind::NoModel, "the model was deleted while it loaded, and is not served".to_string())
        })
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut slots = self.registry.write();
        if let Some(slot) = slots.each.iter_mut().find(|slot| slot.id == self.id) {
            slot.loading = None;
        }
        slots.each.retain(|slot| slot.id != self.id || slot.model.is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> ModelSpec {
        ModelSpec::new(name, "somewhere").unwrap()
    }

    fn model(name: &str) -> Arc<Served> {
        Arc::new(Served::empty(&spec(name)))
    }

    fn add(registry: &Registry, name: &str, bytes: u64) -> Arc<Served> {
        let reservation = registry.reserve(&spec(name)).unwrap();
        reservation.claim(bytes, None).unwrap();
        let model = model(name);
        reservation.fill(model.clone()).unwrap();
        model
    }

    fn kind<T>(result: Result<T, Failure>) -> Kind {
        result.err().unwrap().kind
    }

    #[test]
    fn a_name_is_taken_from_its_reservation_on_and_free_again_when_nothing_loaded() {
        let registry = Registry::default();
        let reservation = registry.reserve(&spec("a")).unwrap();
        assert_eq!(kind(registry.reserve(&spec("a"))), Kind::Conflict);
        assert_eq!(kind(registry.get(Some("a"))), Kind::Unavailable);
        drop(reservation);
        assert_eq!(kind(registry.get(Some("a"))), Kind::NoModel);
        add(&registry, "a", 1);
        assert_eq!(registry.get(None).unwrap().name, "a");
    }

    #[test]
    fn models_that_still_load_count_towards_the_limit() {
        let registry = Registry::default();
        add(&registry, "a", 40);
        let loading = registry.reserve(&spec("b")).unwrap();
        loading.claim(40, Some(100)).unwrap();
        let third = registry.reserve(&spec("c")).unwrap();
        let failure = third.claim(21, Some(100)).unwrap_err();
        assert_eq!(failure.kind, Kind::Memory);
        assert!(failure.message.contains("21 bytes") && failure.message.contains("80"), "{failure}");
        drop(loading);
        third.claim(60, Some(100)).unwrap();
    }

    #[test]
    fn one_reload_of_a_model_at_a_time_which_leaves_it_alone_until_it_is_filled() {
        let registry = Registry::default();
        let old = add(&registry, "a", 60);
        let (reload, from) = registry.reserve_again("a").unwrap();
        assert_eq!(from, spec("a"));
        assert_eq!(kind(registry.reserve_again("a")), Kind::Conflict);
        reload.claim(100, Some(100)).unwrap();
        assert!(Arc::ptr_eq(&registry.get(Some("a")).unwrap(), &old));
        drop(reload);
        assert!(Arc::ptr_eq(&registry.get(Some("a")).unwrap(), &old), "what does not load changes nothing");
        let (reload, _) = registry.reserve_again("a").unwrap();
        let new = model("a");
        reload.fill(new.clone()).unwrap();
        assert!(Arc::ptr_eq(&registry.get(Some("a")).unwrap(), &new));
        registry.reserve_again("a").unwrap();
        assert_eq!(kind(registry.reserve_again("b")), Kind::NoModel);
    }

    #[test]
    fn a_model_that_is_removed_while_it_loads_is_not_served_nor_is_its_successor_touched() {
        let registry = Registry::default();
        let first = registry.reserve(&spec("a")).unwrap();
        registry.remove("a").unwrap();
        let successor = add(&registry, "a", 1);
        assert_eq!(kind(first.fill(model("a"))), Kind::NoModel);
        assert!(Arc::ptr_eq(&registry.get(Some("a")).unwrap(), &successor));
        let (reload, _) = registry.reserve_again("a").unwrap();
        registry.remove("a").unwrap();
        assert_eq!(kind(reload.claim(1, None)), Kind::NoModel);
        drop(reload);
        assert_eq!(kind(registry.remove("a")), Kind::NoModel);
    }
}
