//! The transitions of a queue pair between its states.

use std::mem::MaybeUninit;

use super::address::within;
use super::{AddressVector, Failed, Init, QueuePair, ReceiveOptions, Reset, Rtr, Rts, SendOptions};
use crate::error::failed_as;
use crate::{Access, Error, hints, raw};

impl QueuePair<Reset> {
    /// Binds it to a port, and sets the accesses that its peer is allowed to its domain's regions.
    ///
    /// # Errors
    ///
    /// The device has no port of this number. The queue pair is destroyed then.
    pub fn init(self, port: u8, access: Access) -> Result<QueuePair<Init>, Error> {
        let mut to = attributes(raw::IBV_QPS_INIT);
        to.port_num = port;
        to.qp_access_flags = access.bits();
        let mask = raw::IBV_QP_PKEY_INDEX | raw::IBV_QP_PORT | raw::IBV_QP_ACCESS_FLAGS;
        let hint = |errno| hints::to_init(errno, port);
        self.modify("ibv_modify_qp to INIT", &mut to, mask, hint)
    }
}

impl QueuePair<Init> {
    /// Connects it to its peer. The peer may send as soon as this end is ready.
    ///
    /// # Errors
    ///
    /// The peer's address does not resolve, or the local address has changed since it was looked
    /// up; the error says which attribute is wrong. The queue pair is destroyed then.
    pub fn ready_to_receive(
        self,
        path: &AddressVector,
        options: ReceiveOptions,
    ) -> Result<QueuePair<Rtr>, Error> {
        within("the first packet's number", options.psn, 0xff_ffff)?;
        within("rnr_timer", options.rnr_timer.into(), 31)?;
        let mut to = attributes(raw::IBV_QPS_RTR);
        to.path_mtu = path.mtu as u32;
        to.dest_qp_num = path.peer.qp_num;
        to.rq_psn = options.psn;
        to.max_dest_rd_atomic = options.reads_answered;
        to.min_rnr_timer = options.rnr_timer;
        to.ah_attr = path.to_raw();
        let mask = raw::IBV_QP_AV
            | raw::IBV_QP_PATH_MTU
            | raw::IBV_QP_DEST_QPN
            | raw::IBV_QP_RQ_PSN
            | raw::IBV_QP_MAX_DEST_RD_ATOMIC
            | raw::IBV_QP_MIN_RNR_TIMER;
        let hint = |errno| hints::to_rtr(errno, path);
        let mut pair = self.modify("ibv_modify_qp to RTR", &mut to, mask, hint)?;
        pair.pair.peer = Some(path.peer);
        Ok(pair)
    }
}

impl QueuePair<Rtr> {
    /// Makes it ready to send.
    ///
    /// # Errors
    ///
    /// An option is beyond the device's limits. The queue pair is destroyed then.
    pub fn ready_to_send(self, options: SendOptions) -> Result<QueuePair<Rts>, Error> {
        within("the first packet's number", options.psn, 0xff_ffff)?;
        within("timeout", options.timeout.into(), 31)?;
        within("retries", options.retries.into(), 7)?;
        within("rnr_retries", options.rnr_retries.into(), 7)?;
        let mut to = attributes(raw::IBV_QPS_RTS);
        to.sq_psn = options.psn;
        to.timeout = options.timeout;
        to.retry_cnt = options.retries;
        to.rnr_retry = options.rnr_retries;
        to.max_rd_atomic = options.reads_started;
        let mask = raw::IBV_QP_SQ_PSN
            | raw::IBV_QP_TIMEOUT
            | raw::IBV_QP_RETRY_CNT
            | raw::IBV_QP_RNR_RETRY
            | raw::IBV_QP_MAX_QP_RD_ATOMIC;
        let hint = |errno| hints::to_rts(errno, options.reads_started);
        self.modify("ibv_modify_qp to RTS", &mut to, mask, hint)
    }
}

impl<S> QueuePair<S> {
    /// Moves it to the error state: nothing that arrives for it from now on accesses memory, and
    /// all posted requests end as [`crate::Status::Flushed`].
    ///
    /// # Errors
    ///
    /// The device is gone. The queue pair is then destroyed, if the device still allows it.
    pub fn into_failed(self) -> Result<QueuePair<Failed>, Error> {
        let mut to = attributes(raw::IBV_QPS_ERR);
        self.modify("ibv_modify_qp to ERR", &mut to, 0, hints::gone)
    }

    /// Resets it, to be connected again. Posted requests that have not ended are discarded without
    /// a completion.
    ///
    /// # Errors
    ///
    /// The device is gone. The queue pair is then destroyed, if the device still allows it.
    pub fn reset(self) -> Result<QueuePair<Reset>, Error> {
        let mut to = attributes(raw::IBV_QPS_RESET);
        let mut pair = self.modify("ibv_modify_qp to RESET", &mut to, 0, hints::gone)?;
        pair.pair.peer = None;
        Ok(pair)
    }

    fn modify<T>(
        self,
        call: &'static str,
        to: &mut raw::ibv_qp_attr,
        mask: raw::ibv_qp_attr_mask,
        hint: impl FnOnce(i32) -> String,
    ) -> Result<QueuePair<T>, Error> {
        let modify = self.pair.domain.context().api().ibv_modify_qp;
        let mask = (mask | raw::IBV_QP_STATE) as i32;
        // SAFETY: `self` keeps the queue pair alive, and the function only reads the attributes
        // that the mask names.
        match unsafe { modify(self.pair.raw(), to, mask) } {
            0 => Ok(QueuePair::new(self.pair)),
            errno => Err(failed_as(call, errno, &self.pair, hint)),
        }
    }
}

impl AddressVector {
    fn to_raw(self) -> raw::ibv_ah_attr {
        raw::ibv_ah_attr {
            grh: raw::ibv_global_route {
                dgid: raw::ibv_gid {
                    raw: self.peer.gid.0,
                },
                flow_label: 0,
                sgid_index: self.own_index,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            },
            dlid: 0,
            sl: self.service_level,
            src_path_bits: 0,
            static_rate: 0,
            is_global: 1,
            port_num: self.port,
        }
    }
}

fn attributes(state: raw::ibv_qp_state) -> raw::ibv_qp_attr {
    // SAFETY: `ibv_qp_attr` holds only integers and bytes, for which zeros are valid.
    let mut attributes: raw::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    attributes.qp_state = state;
    attributes
}
