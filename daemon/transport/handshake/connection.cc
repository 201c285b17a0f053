#include "daemon/transport/handshake/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "common/probe/answerer.h"
#include "common/probe/exchange.h"

namespace tensorlane::handshake {
namespace {

const char* waiting_for(Connection::State state) {
  switch (state) {
    case Connection::State::kConnecting:
      return "the connection";
    case Connection::State::kChallenge:
      return "the challenge";
    case Connection::State::kVerdict:
      return "the verdict";
    case Connection::State::kSettling:
      return "the transport's connection";
    case Connection::State::kHello:
      return "the hello";
    case Connection::State::kProof:
      return "the proof";
    case Connection::State::kAnswering:
      return "this host's end of the transport's connection";
    case Connection::State::kReady:
      return "the peer's readiness";
    case Connection::State::kDone:
    case Connection::State::kFailed:
      break;
  }
  return "nothing";
}

Head head_of(Refusal refusal) {
  Head head;
  head.refusal = refusal;
  return head;
}

}  // namespace

Connection::Connection(Fd socket, ClassId cls, Time deadline, const ExchangeFactory& exchanges,
                       ports::ProbeTokens* probes)
    : Watched(Kind::kConnection),
      socket_(std::move(socket)),
      connecting_end_(false),
      deadline_(deadline),
      remote_(peer_endpoint(socket_.get()).text()),
      cls_(cls),
      state_(State::kHello),
      probes_(probes),
      exchanges_(exchanges) {}

Connection::Connection(Fd socket, const Endpoint& peer, ports::FlowKey key, JobPtr job, Time deadline,
                       const ExchangeFactory& exchanges)
    : Watched(Kind::kConnection),
      socket_(std::move(socket)),
      connecting_end_(true),
      deadline_(deadline),
      remote_(peer.text()),
      cls_(key.cls),
      state_(State::kConnecting),
      peer_known_(true),
      key_(key),
      job_(std::move(job)),
      exchanges_(exchanges) {}

Connection::State Connection::advance(const JobTable& jobs) {
  for (;;) {
    const State before = state_;
    state_ = step(jobs);
    if (state_ == before || state_ == State::kDone || state_ == State::kFailed) return state_;
  }
}

Connection::State Connection::step(const JobTable& jobs) {
  switch (state_) {
    case State::kConnecting:
      return on_connected();
    case State::kChallenge:
      return on_challenge();
    case State::kVerdict:
      return on_verdict();
    case State::kSettling:
      return on_settling();
    case State::kHello:
      return on_hello(jobs);
    case State::kProof:
      return on_proof(jobs);
    case State::kAnswering:
      return on_answering(jobs);
    case State::kReady:
      return on_ready(jobs);
    case State::kDone:
    case State::kFailed:
      break;
  }
  return state_;
}

// ---- the connecting end ----

Connection::State Connection::on_connected() {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return lost(error);
  if (peer_endpoint(socket_.get()).length == 0) return state_;  // still on its way
  parameter_bytes_ = exchanges_.bytes_for(*job_);
  hello_ = make_hello(*job_, key_.peer, key_.cls, parameter_bytes_, exchanges_.protection);
  return send(hello_) ? State::kChallenge : state_;
}

Connection::State Connection::on_challenge() {
  Challenge challenge;
  if (!receive(challenge)) return state_;
  if (const Verdicted head = check_head(challenge.head); !head.ok()) return refuse(head);
  if (!same_mac(challenge.mac, challenge_mac(*job_, hello_, challenge))) return refuse(wrong_key());
  proven_ = true;
  if (challenge.head.refusal != Refusal::kNone) return refused(challenge.head, unpack_text(challenge.text));
  server_nonce_ = challenge.nonce;
  cipher_ = challenge.cipher;
  if (!usable_cipher()) return refuse({Refusal::kProtection, "the peer has chosen a cipher that this host lacks"});
  if (!make_offer({})) return state_;
  Proof proof;
  proof.mac = proof_mac(*job_, hello_, server_nonce_, proof, mine_);
  return send(proof, mine_, exchange_ ? exchange_->descriptor() : -1) ? State::kVerdict : state_;
}

Connection::State Connection::on_verdict() {
  Verdict verdict;
  if (!receive(verdict, mine_.size())) return state_;
  if (const Verdicted head = check_head(verdict.head); !head.ok()) return refuse(head);
  const bool goes_on = verdict.head.refusal == Refusal::kNone;
  theirs_ = goes_on ? received_behind<Verdict>(mine_.size()) : std::vector<std::byte>();
  const Parameters mine = goes_on ? Parameters(mine_) : Parameters();
  if (!same_mac(verdict.mac, verdict_mac(*job_, hello_, server_nonce_, verdict, mine, theirs_)))
    return refuse(wrong_key());
  if (!goes_on) return refused(verdict.head, unpack_text(verdict.text));
  if (!exchange_) return State::kDone;
  exchange_->bind(exchange_secret(*job_, hello_, server_nonce_, mine_, theirs_));
  if (const Status accepted = exchange_->accept(theirs_); !accepted.ok()) return refuse(accepted);
  return State::kSettling;
}

Connection::State Connection::on_settling() {
  const Result<bool> settled = exchange_->settled();
  if (settled.ok() && *settled) return send_ready(Refusal::kNone) ? State::kDone : state_;
  if (settled.ok()) return peer_waits() ? state_ : lost(0);
  const Status& cause = settled.status();
  if (cause.code() != Code::kUnavailable) return refuse(cause);
  return fail(cause.code(), "failed: " + cause.what(), cause.fix());
}

// ---- the accepting end ----

// Its hello is shorter than that of a flow, and lies in inbox_ as far as it has come.
Connection::State Connection::on_probe() {
  probe::Hello hello;
  if (!receive_bytes(sizeof hello)) return state_;
  std::memcpy(&hello, inbox_.data(), sizeof hello);
  const bool is_burst = hello.purpose == probe::Purpose::kSink || hello.purpose == probe::Purpose::kEcho;
  if (hello.version == probe::kVersion && is_burst) {
    using enum ports::ProbeTokens::Handed;
    const auto handed = probes_->hand_over(hello.token, now_, socket_.get(), std::span(inbox_).first(sizeof hello));
    probe_handed_over_ = handed == kTaken;
    if (handed == kTaken) return fail(Code::kUnavailable, "was a probe", {});
    if (handed == kNobody)
      return refuse({Refusal::kNotTensorlane, "it is a burst of tensorlane verify, and nobody here takes it any more"});
  }
  const bool is_known =
      hello.version == probe::kVersion && hello.purpose == probe::Purpose::kTell && probes_->take(hello.token, now_);
  if (!is_known) return refuse({Refusal::kNotTensorlane, "it is a probe with a token that nobody has told this host"});
  probe::Answer answer;
  answer.nonce = hello.nonce;
  probe::read_first_packet(socket_.get(), &answer);
  probe_answered_ = refusal_sent_ = send(answer);
  return fail(Code::kUnavailable, "was a probe", {});
}

Connection::State Connection::on_hello(const JobTable& jobs) {
  if (probes_ != nullptr) {
    if (inbox_bytes_ < sizeof(Head) && !receive_bytes(sizeof(Head))) return state_;
    Head head;
    std::memcpy(&head, inbox_.data(), sizeof head);
    if (head.magic == probe::kMagic) return on_probe();
  }
  if (!receive(hello_)) return state_;
  if (const Verdicted head = check_head(hello_.head); !head.ok()) return refuse(head);
  claim_ = fmt::format(", which says that it is host {} of job {:#018x},", hello_.from, hello_.job);
  if (const Verdicted peer = check_peer(hello_, jobs, &job_); !peer.ok()) return refuse(peer);
  proven_ = true;
  key_ = {JobId(hello_.job), HostIndex(hello_.from), cls_};
  parameter_bytes_ = exchanges_.bytes_for(*job_);
  const Verdicted flow = check_flow(hello_, cls_, exchanges_, job_, jobs);
  if (!flow.ok()) return refuse(flow);
  cipher_ = common_cipher(hello_, exchanges_.protection);
  return send(challenge(Refusal::kNone, {})) ? State::kProof : state_;
}

Connection::State Connection::on_proof(const JobTable& jobs) {
  Proof proof;
  if (!receive(proof, parameter_bytes_)) return state_;
  if (const Verdicted head = check_head(proof.head); !head.ok()) return refuse(head);
  const bool goes_on = proof.head.refusal == Refusal::kNone;
  theirs_ = goes_on ? received_behind<Proof>(parameter_bytes_) : std::vector<std::byte>();
  // A hello can be a copy of an old one; only this proves that the host itself is there.
  if (!same_mac(proof.mac, proof_mac(*job_, hello_, server_nonce_, proof, theirs_))) return refuse(wrong_key());
  peer_known_ = true;
  if (!goes_on) return refused(proof.head, "it could not make its end of the flow");
  if (has_ended(jobs)) return refuse({Refusal::kJob, "the job has ended on this host"});
  if (parameter_bytes_ == 0) return send(verdict(Refusal::kNone, {})) ? State::kDone : state_;
  if (!make_offer(theirs_)) return state_;
  exchange_->bind(exchange_secret(*job_, hello_, server_nonce_, theirs_, mine_));
  if (const Status accepted = exchange_->accept(theirs_); !accepted.ok()) return refuse(accepted);
  return State::kAnswering;
}

Connection::State Connection::on_answering(const JobTable& jobs) {
  if (has_ended(jobs)) return refuse({Refusal::kJob, "the job has ended on this host"});
  const Result<bool> may_answer = exchange_->may_answer();
  if (!may_answer.ok()) return refuse(may_answer.status());
  if (!*may_answer) return peer_waits() ? state_ : lost(0);
  return send(verdict(Refusal::kNone, {}), mine_) ? State::kReady : state_;
}

Connection::State Connection::on_ready(const JobTable& jobs) {
  Ready ready;
  if (!receive(ready)) return state_;
  if (has_ended(jobs)) return refuse({Refusal::kJob, "the job has ended on this host"});
  if (const Verdicted head = check_head(ready.head); !head.ok()) return refuse(head);
  if (!same_mac(ready.mac, ready_mac(*job_, hello_, server_nonce_, ready, theirs_, mine_))) return refuse(wrong_key());
  if (ready.head.refusal == Refusal::kNotAnswered) return refused(ready.head, "it was not ready in time");
  if (ready.head.refusal != Refusal::kNone) return refused(ready.head, "it could not use this host's parameters");
  const Result<bool> settled = exchange_->settled();
  if (!settled.ok()) return refuse(settled.status());
  if (!*settled) return refuse({Refusal::kParameters, "the peer is ready and has connected nothing"});
  return State::kDone;
}

bool Connection::usable_cipher() const {
  const bool protects = exchanges_.protection.level != DataProtection::kNone;
  return protects ? std::popcount(static_cast<unsigned>(cipher_)) == 1 &&
                        (static_cast<unsigned>(cipher_) & exchanges_.protection.ciphers) != 0
                  : cipher_ == protect::Cipher::kNone;
}

std::unique_ptr<protect::Records> Connection::make_records() const {
  TL_ASSERT(state_ == State::kDone);
  TL_ASSERT((cipher_ == protect::Cipher::kNone) == (exchanges_.protection.level == DataProtection::kNone));
  if (cipher_ == protect::Cipher::kNone) return nullptr;
  return std::make_unique<protect::Records>(record_secrets(*job_, hello_, server_nonce_, cipher_));
}

protect::RecordSecrets Connection::secrets() const {
  TL_ASSERT(state_ == State::kDone);
  return record_secrets(*job_, hello_, server_nonce_, cipher_);
}

// It may have gone, or come back with another epoch, since the hello.
bool Connection::has_ended(const JobTable& jobs) const {
  return jobs.find(key_.job) != job_;
}

Duration Connection::answer_timeout() const {
  const Duration resume = job_->resume_within();
  if (resume == Duration()) return kAnswerTimeout;
  return std::clamp(Duration(resume.value / 8), milliseconds(100), kAnswerTimeout);
}

Challenge Connection::challenge(Refusal refusal, const std::string& text) {
  server_nonce_ = random_nonce();
  Challenge challenge{.head = head_of(refusal), .cipher = cipher_, .nonce = server_nonce_, .text = pack_text(text)};
  challenge.mac = challenge_mac(*job_, hello_, challenge);
  return challenge;
}

Verdict Connection::verdict(Refusal refusal, const std::string& text) const {
  Verdict verdict{.head = head_of(refusal), .text = pack_text(text)};
  verdict.mac = refusal == Refusal::kNone ? verdict_mac(*job_, hello_, server_nonce_, verdict, theirs_, mine_)
                                          : verdict_mac(*job_, hello_, server_nonce_, verdict);
  return verdict;
}

bool Connection::send_ready(Refusal refusal) {
  Ready ready{.head = head_of(refusal)};
  ready.mac = ready_mac(*job_, hello_, server_nonce_, ready, mine_, theirs_);
  return send(ready);
}

Verdicted Connection::wrong_key() const {
  return {Refusal::kKey,
          fmt::format("it does not hold the key of hosts {} and {} for the job, or its words were changed "
                      "on the way",
                      hello_.from, hello_.to)};
}

bool Connection::make_offer(Parameters theirs) {
  if (parameter_bytes_ == 0) return true;
  exchange_ = exchanges_.make(key_, job_);
  if (!connecting_end_) exchange_->take_descriptor(std::move(descriptor_));
  Result<std::vector<std::byte>> offer = exchange_->offer(theirs);
  if (!offer.ok()) {
    state_ = refuse(offer.status());
    return false;
  }
  mine_ = std::move(offer).value();
  TL_ASSERT(mine_.size() == parameter_bytes_);
  return true;
}

// ---- both ----

template <typename Message>
bool Connection::receive(Message& message, std::size_t more) {
  static_assert(sizeof message + kMaxParameterBytes + kMacBytes <= sizeof inbox_);
  // The head alone tells an end of another version, or of no version; nothing is expected to follow it.
  if (inbox_bytes_ < sizeof(Head) && !receive_bytes(sizeof(Head))) return false;
  std::memcpy(&message.head, inbox_.data(), sizeof(Head));
  if (check_head(message.head).ok()) {
    if (!receive_bytes(sizeof message + (message.head.refusal == Refusal::kNone ? more : 0))) return false;
    std::memcpy(&message, inbox_.data(), sizeof message);
  }
  inbox_bytes_ = 0;
  return true;
}

bool Connection::receive_bytes(std::size_t bytes) {
  while (inbox_bytes_ < bytes) {
    // Not a byte more than this message: what follows the handshake belongs to the flow.
    const ssize_t received = receive_some(std::span(inbox_).subspan(inbox_bytes_, bytes - inbox_bytes_));
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && errno == EAGAIN) return false;
    if (received <= 0) {
      state_ = lost(received == 0 ? 0 : errno);
      return false;
    }
    silent_ = false;
    inbox_bytes_ += static_cast<std::size_t>(received);
  }
  return true;
}

ssize_t Connection::receive_some(std::span<std::byte> into) {
  // Without room for descriptors the kernel closes what comes.
  if (state_ != State::kProof) return ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
  iovec piece{into.data(), into.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_LEN(sizeof(int));  // of one: the kernel closes what is more
  const ssize_t received = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* came = received > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (came != nullptr && came->cmsg_level == SOL_SOCKET && came->cmsg_type == SCM_RIGHTS) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(came), sizeof descriptor);
    descriptor_.reset(descriptor);
  }
  return received;
}

template <typename Message>
bool Connection::send(const Message& message, Parameters more, int descriptor) {
  std::array<std::byte, sizeof inbox_> bytes;
  const std::size_t size = sizeof message + more.size();
  std::memcpy(bytes.data(), bytes_of(message).data(), sizeof message);
  if (!more.empty()) std::memcpy(bytes.data() + sizeof message, more.data(), more.size());
  iovec piece{bytes.data(), size};
  msghdr whole{};
  whole.msg_iov = &piece;
  whole.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    whole.msg_control = control.data();
    whole.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&whole);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  const ssize_t sent = ::sendmsg(socket_.get(), &whole, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(size)) return true;
  // The first few hundred bytes of a connection always fit into its send buffer.
  state_ = lost(sent < 0 ? errno : ENOBUFS);
  return false;
}

// Has neither closed its end nor spoken out of turn.
bool Connection::peer_waits() const {
  std::byte byte;
  return ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR);
}

// Who has not proved itself is told its version's fault at most: anything else would help it to guess.
void Connection::tell(const Verdicted& verdict) {
  refusal_ = verdict.refusal;
  const State at = state_;
  if (verdict.refusal == Refusal::kVersion && at == State::kHello) {
    refusal_sent_ = send(Challenge{.head = head_of(verdict.refusal), .text = pack_text(verdict.text)});
    return;
  }
  const bool unproven = verdict.refusal == Refusal::kKey || verdict.refusal == Refusal::kNotTensorlane ||
                        verdict.refusal == Refusal::kVersion;
  if (!proven_ || unproven) return;
  if (at == State::kHello) refusal_sent_ = send(challenge(verdict.refusal, verdict.text));
  if (at == State::kProof || at == State::kAnswering)
    refusal_sent_ = send(this->verdict(verdict.refusal, verdict.text));
  if (at == State::kChallenge) {
    Proof proof{.head = head_of(verdict.refusal)};
    proof.mac = proof_mac(*job_, hello_, server_nonce_, proof);
    refusal_sent_ = send(proof);
  }
  if ((at == State::kVerdict || at == State::kSettling) && !theirs_.empty())
    refusal_sent_ = send_ready(verdict.refusal);
}

Connection::State Connection::refuse(const Verdicted& verdict) {
  tell(verdict);
  return fail(refusal_code(refusal_), "was refused by this host: " + verdict.text, refusal_fix(refusal_));
}

Connection::State Connection::refuse(const Status& cause) {
  tell({cause.code() == Code::kInProgress ? Refusal::kNotYet : Refusal::kParameters, text_that_fits(cause)});
  return fail(refusal_code(refusal_),
              "was refused by this host: " + Status(cause.code(), cause.what(), cause.where()).to_string(),
              cause.fix().empty() ? refusal_fix(refusal_) : cause.fix());
}

Connection::State Connection::refused(const Head& head, const std::string& text) {
  refusal_ = head.refusal;
  return fail(refusal_code(refusal_), "was refused by the peer: " + text, refusal_fix(refusal_));
}

bool Connection::late(Time now) {
  if (now >= deadline_) return true;
  if (state_ != State::kAnswering || now < answer_by_) return false;
  answer_by_ = now + kAnswerInterval;
  return !exchange_->delay().ok();
}

void Connection::time_out() {
  const Status delay = waits_for_exchange() ? exchange_->delay() : Status();
  if (!delay.ok() && !connecting_end_) {
    state_ = refuse(delay);
    return;
  }
  Verdicted late{Refusal::kNotAnswered, fmt::format("{} did not come in time", waiting_for(state_))};
  if (!delay.ok()) late.text += ": " + Status(delay.code(), delay.what(), delay.where()).to_string();
  tell(late);
  state_ = fail(Code::kTimedOut, "failed: " + late.text, delay.fix().empty() ? refusal_fix(late.refusal) : delay.fix());
}

Connection::State Connection::lost(int error) {
  // What a host does with whoever does not prove the key of the pair, and while it does not know the job yet.
  if (state_ == State::kChallenge && !proven_ && (error == 0 || error == ECONNRESET)) {
    return fail(Code::kUnavailable, "was closed by that host without an answer",
                "look at the log of tensorlaned there for why it does not take this host for one of the job, and check "
                "the addresses in fabric.yaml");
  }
  const std::string reason = error == 0 ? "closed by the peer" : errno_text(error);
  return fail(Code::kUnavailable, fmt::format("failed while waiting for {}: {}", waiting_for(state_), reason),
              "check that tensorlaned runs on that host and that its data ports can be reached");
}

Connection::State Connection::fail(Code code, const std::string& how, const std::string& fix) {
  if (state_ == State::kFailed) return state_;  // the first cause counts
  const std::string name = peer_known_
                               ? connection_name(key_.peer, remote_, cls_)
                               : fmt::format("connection from {} (class {}){}", remote_, class_name(cls_), claim_);
  failure_ = {code, fmt::format("{} {}", name, how), {}, fix};
  state_ = State::kFailed;
  return state_;
}

}  // namespace tensorlane::handshake
