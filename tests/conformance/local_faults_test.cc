// Shared memory from a peer that holds the pair's key and means harm: descriptors that are no segments, indices that
// cannot be, payloads that are not there. And payloads that are taken back while they are read.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/local/exchange.h"
#include "daemon/transport/local/local_transport.h"
#include "daemon/transport/local/record.h"
#include "daemon/transport/local/segment.h"
#include "local_kinds.h"
#include "raw_peer.h"

namespace tensorlane::conformance {
namespace {

using local::Segment;
using ::testing::AllOf;
using ::testing::HasSubstr;

const handshake::Job& job() {
  static const handshake::Job job(credentials(HostIndex(0)));
  return job;
}

// Host 0, made by hand, on its way to a flow of class kUrgent with the host under test.
class LocalPeer {
 public:
  LocalPeer(TestClock& clock, Host& host) : clock_(clock), host_(host) {
    const auto port = static_cast<std::uint16_t>(host.data_port + 1 + kUrgent.value);
    const auto endpoint =
        *handshake::unix_endpoint(socket_folder(), *handshake::parse_endpoint(host.kind.address, port));
    socket_ = handshake::Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket_.get(), endpoint.get(), endpoint.length), 0);
    hello_ = handshake::make_hello(job(), host.self, kUrgent, sizeof(local::Parameters));
    send(handshake::bytes_of(hello_));
    challenge_ = receive<handshake::Challenge>();
  }

  // The rest of the handshake with this descriptor. What the host says to it.
  handshake::Verdict offer(int descriptor, local::Parameters mine = {}) {
    const auto parameters = handshake::bytes_of(mine);
    const handshake::Proof proof = good_proof(hello_, challenge_.nonce, parameters);
    std::vector<std::byte> bytes(sizeof proof + parameters.size());
    std::memcpy(bytes.data(), &proof, sizeof proof);
    std::memcpy(bytes.data() + sizeof proof, parameters.data(), parameters.size());
    send(bytes, descriptor);
    const auto verdict = receive<handshake::Verdict>();
    if (verdict.head.refusal != handshake::Refusal::kNone) return verdict;
    const auto theirs = receive<std::array<std::byte, sizeof(local::Parameters)>>();
    send(handshake::bytes_of(good_ready(hello_, challenge_.nonce, parameters, theirs)));
    EXPECT_TRUE(run_until(clock_, {&host_}, [&] { return host_.sink->up(flow()); }));
    return verdict;
  }
  static ports::FlowKey flow() { return {kJob, HostIndex(0), kUrgent}; }
  void hang_up() { socket_.reset(); }

 private:
  void send(std::span<const std::byte> bytes, int descriptor = -1) {
    iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      *rights = {CMSG_LEN(sizeof descriptor), SOL_SOCKET, SCM_RIGHTS};
      std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    }
    EXPECT_EQ(::sendmsg(socket_.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  template <typename Message>
  Message receive() {
    Message message{};
    std::size_t have = 0;
    run_until(
        clock_, {&host_},
        [&] {
          const ssize_t got =
              ::recv(socket_.get(), reinterpret_cast<std::byte*>(&message) + have, sizeof message - have, MSG_DONTWAIT);
          have += got > 0 ? static_cast<std::size_t>(got) : 0;
          return have == sizeof message || got == 0;
        },
        std::chrono::seconds(2));
    EXPECT_EQ(have, sizeof message);
    return message;
  }

  TestClock& clock_;
  Host& host_;
  handshake::Fd socket_;
  handshake::Hello hello_;
  handshake::Challenge challenge_;
};

class LocalFaults : public ::testing::Test {
 protected:
  LocalFaults() { host.add_job(); }
  void expect_refused(int descriptor, const std::string& why, local::Parameters parameters = {}) {
    SCOPED_TRACE(why);
    LogCapture log;
    LocalPeer peer(clock, host);
    const auto verdict = peer.offer(descriptor, parameters);
    EXPECT_EQ(verdict.head.refusal, handshake::Refusal::kParameters);
    EXPECT_THAT(handshake::unpack_text(verdict.text), HasSubstr(why));
    EXPECT_TRUE(host.sink->ups.empty());
  }
  // The flow of `segment` ends with this cause, and no frame came out of it.
  void expect_down(Code code, const std::string& why) {
    ASSERT_TRUE(run_until(clock, {&host}, [&] { return !host.sink->downs.empty(); }));
    EXPECT_EQ(host.sink->downs[0].second.code(), code);
    EXPECT_THAT(host.sink->downs[0].second.to_string(),
                AllOf(HasSubstr("connection to host 0 (this machine, class 0) "), HasSubstr(why)));
    EXPECT_TRUE(host.sink->frames.empty());
    host.sink->forget();
  }
  local::RecordBytes record(const std::function<void(local::Record&)>& change = {}) {
    local::Record record;
    record.header = data_header();
    record.header.cls = kUrgent;
    record.header.job = kJob;
    record.header.epoch = Epoch(7);
    if (change) change(record);
    local::RecordBytes bytes;
    local::encode_record(record, bytes);
    return bytes;
  }
  void write(Segment& segment, std::span<const std::byte> bytes) {
    std::memcpy(segment.ring(true).data(), bytes.data(), bytes.size());
    segment.page().connecting.produced = bytes.size();
  }

  TestClock clock;
  Host host{local_kind("local", true), HostIndex(1)};
};

TEST_F(LocalFaults, WhatIsNoSegmentIsRefused) {
  const std::size_t before = open_descriptors();
  expect_refused(-1, "did not come");
  const handshake::Fd open(::memfd_create("unsealed", MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open.get(), local::kSegmentBytes), 0);
  expect_refused(open.get(), "is not sealed");
  const handshake::Fd shrinkable(::memfd_create("shrinks", MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(shrinkable.get(), local::kSegmentBytes), 0);
  ASSERT_EQ(::fcntl(shrinkable.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL), 0);
  expect_refused(shrinkable.get(), "is not sealed");
  const handshake::Fd small(::memfd_create("small", MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(small.get(), 4096), 0);
  ASSERT_EQ(::fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  expect_refused(small.get(), "has 4096 bytes, expected ");
  const handshake::Fd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  expect_refused(file.get(), "is not sealed");
  local::Parameters newer;
  newer.version = local::kSegmentVersion + 1;
  expect_refused(small.get(), "shared memory of version 2", newer);
  ASSERT_TRUE(run_until(clock, {&host}, [&] { return open_descriptors() <= before + 4; }));
}

TEST_F(LocalFaults, ASegmentKeepsItsSizeAndLosesPagesWithoutHarm) {
  Segment segment = Segment::create().value();
  EXPECT_NE(::ftruncate(segment.descriptor(), 0), 0);
  LocalPeer peer(clock, host);
  ASSERT_EQ(peer.offer(segment.descriptor()).head.refusal, handshake::Refusal::kNone);
  write(segment, record());
  ASSERT_TRUE(run_until(clock, {&host}, [&] { return host.sink->frames.size() == 1; }));
  host.sink->frames.clear();
  ASSERT_EQ(::fallocate(segment.descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, local::kSegmentBytes), 0);
  segment.page().connecting.produced = 2 * local::kRecordBytes;
  expect_down(Code::kCorrupt, "carried a bad frame magic");
}

TEST_F(LocalFaults, IndicesThatCannotBeEndTheFlow) {
  const auto expect = [&](const char* why, const std::function<void(local::Side&)>& change) {
    Segment segment = Segment::create().value();
    LocalPeer peer(clock, host);
    ASSERT_EQ(peer.offer(segment.descriptor()).head.refusal, handshake::Refusal::kNone);
    change(segment.page().connecting);
    expect_down(Code::kCorrupt, why);
  };
  expect("impossible index", [](local::Side& side) { side.produced = local::kRingBytes + 1; });
  expect("impossible index", [](local::Side& side) { side.produced = ~std::uint64_t{0}; });
  expect("taken more than it was sent", [](local::Side& side) { side.consumed = 1; });
  expect("taken more than it was sent", [](local::Side& side) { side.consumed = ~std::uint64_t{0}; });
}

TEST_F(LocalFaults, AnIndexThatGoesBackEndsTheFlow) {
  Segment segment = Segment::create().value();
  LocalPeer peer(clock, host);
  ASSERT_EQ(peer.offer(segment.descriptor()).head.refusal, handshake::Refusal::kNone);
  segment.page().connecting.produced = local::kRecordBytes - 1;  // nothing that could be read yet
  run_for(clock, {&host}, std::chrono::milliseconds(5));
  EXPECT_TRUE(host.sink->downs.empty());
  segment.page().connecting.produced = local::kRecordBytes - 2;
  expect_down(Code::kCorrupt, "impossible index");
}

TEST_F(LocalFaults, RecordsThatNoSenderWritesEndTheFlow) {
  const auto expect = [&](Code code, const std::string& why, const local::RecordBytes& bytes) {
    Segment segment = Segment::create().value();
    LocalPeer peer(clock, host);
    ASSERT_EQ(peer.offer(segment.descriptor()).head.refusal, handshake::Refusal::kNone);
    write(segment, bytes);
    expect_down(code, why);
  };
  using Payload = local::Record::Payload;
  local::RecordBytes garbage;
  std::ranges::copy(pattern(garbage.size(), 1), garbage.begin());
  expect(Code::kCorrupt, "carried a bad frame magic", garbage);
  expect(Code::kCorrupt, "record of kind 7", record([](auto& r) { r.payload = static_cast<Payload>(7); }));
  expect(Code::kCorrupt, "record of kind 1 with address 0x10", record([](auto& r) { r.address = 16; }));
  expect(Code::kCorrupt, "record of kind 2", record([](auto& r) {
           r.payload = Payload::kStays;
           r.header.payload_bytes = local::kStayBytes - 1;
         }));
  expect(Code::kMismatch, "frame of epoch 6", record([](auto& r) { r.header.epoch = Epoch(6); }));
}

TEST_F(LocalFaults, APayloadThatCannotBeReadEndsTheFlow) {
  Segment segment = Segment::create().value();
  LocalPeer peer(clock, host);
  local::Parameters parameters;
  parameters.probe = local::own_probe();
  ASSERT_EQ(peer.offer(segment.descriptor(), parameters).head.refusal, handshake::Refusal::kNone);
  EXPECT_EQ(segment.page().accepting.reads_memory, 1u);
  write(segment, record([](auto& r) {
          r.payload = local::Record::Payload::kStays;
          r.address = 4096;
          r.header.payload_bytes = local::kStayBytes;
        }));
  expect_down(Code::kCorrupt,
              "left a payload of 16384 bytes at 0x1000 of its memory, which cannot be read: Bad address");
}

TEST_F(LocalFaults, MemoryThatDoesNotReadAsToldIsNotRead) {
  Segment segment = Segment::create().value();
  LocalPeer peer(clock, host);
  local::Parameters parameters;
  parameters.probe = local::own_probe();
  ++parameters.probe.value;
  ASSERT_EQ(peer.offer(segment.descriptor(), parameters).head.refusal, handshake::Refusal::kNone);
  EXPECT_EQ(segment.page().accepting.reads_memory, 0u);
  const auto payload = pattern(local::kStayBytes, 1);
  write(segment, record([&](auto& r) {
          r.payload = local::Record::Payload::kStays;
          r.address = reinterpret_cast<std::uintptr_t>(payload.data());
          r.header.payload_bytes = local::kStayBytes;
        }));
  expect_down(Code::kCorrupt, "which cannot be read");
}

// Law 7, from the sender's side: once it has closed the flow its buffers are somebody else's, so what the receiver
// finds in them is no payload.
TEST(LocalPayloads, AreNotDeliveredAfterTheSenderHasTakenThemBack) {
  for (const bool crc : {false, true}) {
    Pair pair(local_kind("local", true), {.payload_crc = crc});
    auto bytes = pattern(kMaxOperation.value, 1);
    pair.a.send(pair.to_b(kBulk), {data_header(), bytes, 1});
    pair.a->poll(pair.clock.now());
    EXPECT_TRUE(pair.a.sink->sent.empty());
    pair.a->close(pair.to_b(kBulk));
    std::ranges::fill(bytes, std::byte{0xee});
    ASSERT_TRUE(run_until(pair.clock, {&pair.b}, [&] { return !pair.b.sink->downs.empty(); }));
    EXPECT_TRUE(pair.b.sink->frames.empty());
    EXPECT_THAT(pair.b.sink->downs[0].second.to_string(),
                HasSubstr("was closed by the peer before a payload had been read"));
  }
}

TEST(LocalPayloads, OfAProcessThatWasKilledAreNotDelivered) {
  const TransportKind kind = local_kind("local", true);
  TestClock clock;
  Host b(kind, HostIndex(1));
  b.add_job();
  int written[2];
  ASSERT_EQ(::pipe(written), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Host a(kind, HostIndex(0));
    a.add_job();
    const ports::FlowKey to_b{kJob, HostIndex(1), kBulk};
    (void)a->connect(to_b, kind.address, b.data_port, clock.now() + seconds(20));
    run_until(clock, {&a}, [&] { return a.sink->up(to_b); });
    const auto small = pattern(100, 1), large = pattern(kMaxOperation.value, 2);
    a.send(to_b, {data_header(1), small, 0});
    a.send(to_b, {data_header(2), large, 1});
    a->poll(clock.now());
    (void)!::write(written[1], "x", 1);
    for (;;) ::pause();
  }
  const ports::FlowKey to_a{kJob, HostIndex(0), kBulk};
  ASSERT_TRUE(run_until(clock, {&b}, [&] { return b.sink->up(to_a); }));
  char byte;
  ASSERT_EQ(::read(written[0], &byte, 1), 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(run_until(clock, {&b}, [&] { return !b.sink->downs.empty(); }));
  ASSERT_EQ(b.sink->frames.size(), 1u) << "what had been copied into the ring before is whole";
  EXPECT_EQ(b.sink->frames[0].payload, pattern(100, 1));
  EXPECT_THAT(b.sink->downs[0].second.to_string(), HasSubstr("was closed by the peer"));
  ::close(written[0]);
  ::close(written[1]);
}

TEST(LocalSockets, ThatADeadDaemonLeftBehindKeepNobodyFromListening) {
  const auto endpoint = handshake::unix_endpoint(socket_folder(), *handshake::parse_endpoint("127.0.0.1", 39000));
  ASSERT_TRUE(endpoint.ok());
  {
    const handshake::Fd dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(dead.get(), endpoint->get(), endpoint->length), 0);
  }
  ASSERT_TRUE(std::filesystem::is_socket(handshake::unix_path(*endpoint)));
  RecordingSink sink;
  local::LocalConfig config{
      socket_folder(), "127.0.0.1", 39000, {{{kControlClass, 0, 0}, mib(1)}, {{kUrgent, 0, 0}, mib(1)}}};
  {
    const auto alive = local::make_local_transport(config, sink);
    ASSERT_TRUE(alive.ok()) << alive.status().to_string();
    EXPECT_EQ(local::make_local_transport(config, sink).status().code(), Code::kUnavailable) << "one that lives does";
    using std::filesystem::perms;
    EXPECT_EQ(std::filesystem::status(handshake::unix_path(*endpoint)).permissions(),
              perms::owner_read | perms::owner_write)
        << "no other user's process connects, whatever the umask is";
  }
  EXPECT_FALSE(std::filesystem::exists(handshake::unix_path(*endpoint))) << "a daemon takes its own along";
}

TEST(LocalSockets, LieWhereNobodyElseCanWrite) {
  const std::filesystem::path folder = socket_folder() + "/open";
  std::filesystem::create_directory(folder);
  RecordingSink sink;
  local::LocalConfig config{folder, "127.0.0.1", 39000, {{{kControlClass, 0, 0}, mib(1)}, {{kUrgent, 0, 0}, mib(1)}}};
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  EXPECT_THAT(local::make_local_transport(config, sink).status().to_string(),
              HasSubstr("sockets in the folder could be anybody's: others can write into it: " + folder.string()));
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  EXPECT_TRUE(local::make_local_transport(config, sink).ok());
  config.folder = "/nowhere";
  EXPECT_EQ(local::make_local_transport(config, sink).status().code(), Code::kPermissionDenied);
  config.folder = std::string(90, '/') + folder.string();
  EXPECT_THAT(local::make_local_transport(config, sink).status().to_string(), HasSubstr("107 are possible"));
}

TEST(LocalPayloads, LargeOnesAreReadInPlaceAndSmallOnesCopied) {
  Pair pair(local_kind("local", true));
  const auto bytes = pattern(local::kStayBytes, 1);
  pair.send(pair.a, pair.to_b(kBulk), std::span(bytes).first(local::kStayBytes - 1), 1);
  pair.send(pair.a, pair.to_b(kBulk), bytes, 2);
  pair.send(pair.a, pair.to_b(kBulk), std::span(bytes).first(10), 3);
  ASSERT_TRUE(pair.run_until([&] { return pair.b.sink->frames.size() == 3 && pair.a.sink->sent.size() == 3; }));
  EXPECT_EQ(pair.b->counters().payloads_placed, 1u);
  EXPECT_EQ(pair.b->counters().payloads_copied, 2u);
  EXPECT_EQ(pair.b.sink->frames[1].payload, bytes);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(pair.a.sink->sent[i].second, i + 1);
  EXPECT_THAT(pair.a.stats(pair.to_b(kBulk)).describe,
              HasSubstr("shared memory, payloads read from the peer's memory"));
}

}  // namespace
}  // namespace tensorlane::conformance
