//! One rank's connection at the rendezvous: the messages it has sent, and those still to send to
//! it. `rendezvous.rs` decides on the answers to ranks.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use socket2::Socket;
use spark_ccl_fork::Unshared;
use spark_ccl_seal::Sealer;

use crate::frame::{FrameReader, ReadError};
use crate::hello::Hello;
use crate::init_result::{InitReport, MAX_REPORT};
use crate::net;
use crate::sealed_frame::FrameToSeal;
use crate::wire::FrameKind;
use crate::wiring::Survey;

pub(crate) struct Member {
    pub(crate) hello: Hello,
    /// Its report on its links.
    pub(crate) report: Option<Result<(), String>>,
    /// The other ranks that it reached.
    pub(crate) survey: Option<Survey>,
    stream: Unshared<Socket>,
    reader: FrameReader,
    sealer: Sealer,
    /// The buffers still to send, and the bytes of the first that are sent.
    outbox: VecDeque<Arc<[u8]>>,
    sent: usize,
    finishing: bool,
    open: bool,
}

/// An event of a member.
pub(crate) enum News {
    InitReport { time_left: Duration, failed: bool },
    Survey { time_left: Duration },
    Gone,
}

impl Member {
    /// A rank whose hello has arrived. The reader and the sealer continue with its stream.
    pub(crate) fn new(
        hello: Hello,
        stream: Unshared<Socket>,
        reader: FrameReader,
        sealer: Sealer,
    ) -> Self {
        Member {
            hello,
            report: None,
            survey: None,
            stream,
            reader,
            sealer,
            outbox: VecDeque::new(),
            sent: 0,
            finishing: false,
            open: true,
        }
    }

    /// Whether it is still connected.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !self.outbox.is_empty());
        PollFd::new(&self.stream, flags)
    }

    /// Sends as much as fits now; the rest follows in [`Member::serve`].
    pub(crate) fn send(&mut self, frame_to_seal: &FrameToSeal) {
        self.outbox.extend(frame_to_seal.seal(&mut self.sealer));
        self.flush();
    }

    /// Shuts the write side down once everything is sent. The stream stays open for reading until
    /// the member closes it: closing it with unread data would reset the connection, and data in
    /// flight to the member would be lost.
    pub(crate) fn finish(&mut self) {
        self.finishing = true;
        self.flush();
    }

    /// Sends as many bytes as fit, and reads the bytes that have arrived.
    pub(crate) fn serve(&mut self) -> Option<News> {
        self.flush();
        if !self.open {
            return Some(News::Gone);
        }
        match self.reader.poll(&self.stream, MAX_REPORT) {
            Ok(None) => None,
            Ok(Some((FrameKind::Report, body))) if self.report.is_none() => {
                match InitReport::decode(&body) {
                    Ok(report) => {
                        let failed = report.result.is_err();
                        self.report = Some(report.result);
                        Some(News::InitReport {
                            time_left: report.time_left,
                            failed,
                        })
                    }
                    Err(_) => Some(self.close()),
                }
            }
            Ok(Some((FrameKind::Survey, body))) if self.survey.is_none() => {
                match Survey::decode(&body) {
                    Ok(survey) => {
                        let time_left = survey.time_left;
                        self.survey = Some(survey);
                        Some(News::Survey { time_left })
                    }
                    Err(_) => Some(self.close()),
                }
            }
            Err(ReadError::Changed(error)) => {
                // It still receives, and so gets the result.
                self.report = Some(Err(error.to_string()));
                Some(News::InitReport {
                    time_left: Duration::MAX,
                    failed: true,
                })
            }
            Ok(Some(_)) | Err(_) => Some(self.close()),
        }
    }

    fn flush(&mut self) {
        while let Some(bytes) = self.outbox.front() {
            match net::try_write(&self.stream, &bytes[self.sent..]) {
                Ok(Some(count)) => self.sent += count,
                Ok(None) => return,
                Err(_) => {
                    self.close();
                    return;
                }
            }
            if self.sent == bytes.len() {
                self.outbox.pop_front();
                self.sent = 0;
            }
        }
        if self.finishing && self.open {
            // Fails if the member is gone; the next read finds that.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    fn close(&mut self) -> News {
        self.open = false;
        self.outbox.clear();
        let _ = self.stream.shutdown(Shutdown::Both);
        News::Gone
    }
}
