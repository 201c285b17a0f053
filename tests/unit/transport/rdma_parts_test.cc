// The parts of the RDMA transport that need no device: GIDs, messages, parameters, known places, texts of errors.
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "daemon/transport/rdma/device.h"
#include "daemon/transport/rdma/gid.h"
#include "daemon/transport/rdma/message.h"
#include "daemon/transport/rdma/place_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorlane::rdma {
namespace {

using ::testing::HasSubstr;

// ---- GIDs ----

GidEntry entry(std::uint32_t index, GidType type, const std::string& address, const std::string& interface) {
  return {index, type, *gid_of_address(address), interface};
}
const std::vector<GidEntry> kTable = {
    entry(0, GidType::kRoceV2, "fe80::1", "eth0"), entry(1, GidType::kRoceV1, "10.1.0.2", "eth0"),
    entry(2, GidType::kRoceV2, "10.1.0.2", "eth0"), entry(3, GidType::kRoceV2, "10.2.0.2", "eth0.100"),
    entry(4, GidType::kRoceV2, "fd00::2", "eth0")};

TEST(Gid, AddressesGoThereAndBack) {
  for (const std::string address : {"10.1.0.2", "fd00::2", "255.255.255.255", "::1"})
    EXPECT_EQ(address_of_gid(*gid_of_address(address)), address);
  EXPECT_EQ(gid_of_address("h2").status().code(), Code::kInvalidArgument);
}

TEST(Gid, TheAddressNamesTheRoceV2Entry) {
  EXPECT_EQ(choose_gid(kTable, "10.1.0.2", -1, "x")->index, 2u);  // not entry 1, which is RoCE v1
  EXPECT_EQ(choose_gid(kTable, "10.2.0.2", -1, "x")->interface, "eth0.100");
  EXPECT_EQ(choose_gid(kTable, "fd00::2", -1, "x")->index, 4u);
  EXPECT_EQ(choose_gid(kTable, "10.9.9.9", 3, "x")->index, 3u);  // as daemon.yaml says
}

TEST(Gid, AnAddressOfAnotherSubnetOrOfNoVlanIsNamedBesideThoseThatThereAre) {
  const Status status = choose_gid(kTable, "10.3.0.2", -1, "mlx5_0 port 1").status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_EQ(
      status.to_string(),
      "no RoCE v2 GID has this host's rdma address 10.3.0.2: mlx5_0 port 1: its GIDs are fe80::1 (index 0, eth0), "
      "10.1.0.2 (index 2, eth0), 10.2.0.2 (index 3, eth0.100), fd00::2 (index 4, eth0): write one of these addresses "
      "under `addresses: rdma` of this host in fabric.yaml, or give the interface (or the VLAN on it, which must "
      "exist) that address");
}

TEST(Gid, APortWithoutRoceV2SaysSo) {
  const std::vector<GidEntry> v1 = {entry(0, GidType::kRoceV1, "10.1.0.2", "eth0")};
  EXPECT_EQ(
      choose_gid(v1, "10.1.0.2", -1, "mlx4_0 port 1").status().to_string(),
      "the port has no RoCE v2 GID: mlx4_0 port 1: give its network interface an address, and let the device speak "
      "RoCE v2");
}

TEST(Gid, AWantedEntryMustBeThereAndRoceV2) {
  EXPECT_THAT(choose_gid(kTable, "10.1.0.2", 9, "x").status().to_string(), HasSubstr("GID 9 does not exist: x"));
  EXPECT_THAT(choose_gid(kTable, "10.1.0.2", 1, "x").status().to_string(), HasSubstr("GID 1 is not a RoCE v2 GID: x"));
}

// ---- the device ----

TEST(Device, ADeviceWideTrafficClassIsAnError) {
  for (const std::string text : {"", "0\n", "Global tclass=0\n", "\n"})
    EXPECT_TRUE(check_traffic_class(text, "/sys/x", "mlx5_0 port 1").ok()) << text;
  for (const std::string text : {"106\n", "Global tclass=106\n"}) {
    EXPECT_EQ(
        check_traffic_class(text, "/sys/x", "mlx5_0 port 1").to_string(),
        "a device-wide traffic class 106 (DSCP 26) is set, which puts all classes into one: mlx5_0 port 1: echo 0 > "
        "/sys/x");
  }
}

TEST(Device, TimeOutsAreLongerThanTheDetectionTime) {
  EXPECT_EQ(retries_beyond(milliseconds(200)), (Retries{18, 7}));  // never shorter than the longest queue is
  EXPECT_EQ(retries_beyond(seconds(10)), (Retries{19, 7}));
  for (const int s : {1, 5, 10, 60, 600}) EXPECT_GT(4096e-9 * 8 * (1u << retries_beyond(seconds(s)).timeout), s * 1.5);
}

TEST(Device, RetriesLastAsLongAsIsAskedAndNotMuchLonger) {
  for (const double s : {0.15, 1.0, 3.0, 60.0}) {
    const Retries retries = retries_for(milliseconds(static_cast<std::int64_t>(s * 1000)));
    EXPECT_EQ(retries.count, 6);  // which is no number without end anywhere
    const double all = 4096e-9 * 7 * (1u << retries.timeout);
    EXPECT_GE(all, s);
    EXPECT_LE(all, 2 * s);
  }
}

TEST(Device, MemoryOfADeviceThatCannotBeRegisteredIsNamed) {
  EXPECT_EQ(
      dmabuf_failed(EOPNOTSUPP, 4096, "rxe0 port 1").to_string(),
      "cannot register 4096 bytes of device memory (dmabuf) for RDMA: the card, its driver or the kernel does not "
      "support it: rxe0 port 1: use a card whose driver does (mlx5, Linux 5.12 or later), or keep the tensors in "
      "host memory");
  EXPECT_EQ(dmabuf_failed(EOPNOTSUPP, 4096, "rxe0 port 1").code(), Code::kUnavailable);
  EXPECT_EQ(dmabuf_failed(EBADF, 4096, "rxe0 port 1").code(), Code::kInvalidArgument);
  EXPECT_EQ(dmabuf_failed(ENOMEM, 4096, "rxe0 port 1").code(), Code::kResourceExhausted);
}

TEST(Device, TooLittleLockedMemoryNamesTheLimitItsValueAndTheNeed) {
  rlimit before{};
  ::getrlimit(RLIMIT_MEMLOCK, &before);
  rlimit low = before;
  low.rlim_cur = 65536;
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &low), 0);
  const Status status = registration_failed(ENOMEM, 1000000, "rxe0 port 1");
  ::setrlimit(RLIMIT_MEMLOCK, &before);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(
      status.to_string(),
      "cannot register 1000000 bytes for RDMA: the limit of locked memory (RLIMIT_MEMLOCK) is 65536 bytes: rxe0 port "
      "1: set LimitMEMLOCK=infinity in tensorlaned's unit (or `ulimit -l unlimited`): all arenas, the staging and the "
      "message buffers must fit");
}

// ---- messages ----

std::vector<std::byte> message(MessageHead head, const std::vector<Place>& places, std::size_t header,
                               std::size_t payload) {
  head.places = static_cast<std::uint8_t>(places.size());
  std::vector<std::byte> bytes(sizeof head + header + places.size() * sizeof(Place) + payload);
  std::memcpy(bytes.data(), &head, sizeof head);
  if (!places.empty()) std::memcpy(bytes.data() + sizeof head + header, places.data(), places.size() * sizeof(Place));
  return bytes;
}
constexpr std::size_t kHeader = protocol::kFrameHeaderBytes;

TEST(Message, PartsComeOutAsTheyWentIn) {
  const std::vector<Place> places = {{0x1000, 262144, 7, 0}, {0x9000, 5, 8, 0}};
  const auto bytes = message({.kind = MessageKind::kFrame, .credits = 3}, places, kHeader, 100);
  const Message m = *parse_message(bytes);
  EXPECT_EQ(m.head.credits, 3);
  EXPECT_EQ(m.frame_header.data(), bytes.data() + sizeof(MessageHead));
  EXPECT_EQ(m.place(0), places[0]);
  EXPECT_EQ(m.place(1), places[1]);
  EXPECT_EQ(m.payload.size(), 100u);
  EXPECT_EQ(parse_message(message({.kind = MessageKind::kMore}, {}, 0, 4000))->payload.size(), 4000u);
  EXPECT_TRUE(parse_message(message({.kind = MessageKind::kCredit, .credits = 16}, {}, 0, 0)).ok());
}

TEST(Message, WhatCannotBeIsCorrupt) {
  const Place place{1, 2, 3, 0};
  const std::vector<std::vector<std::byte>> bad = {
      {},
      std::vector<std::byte>(15),
      message({.kind = static_cast<MessageKind>(0)}, {}, kHeader, 0),
      message({.kind = static_cast<MessageKind>(4)}, {}, kHeader, 0),
      message({.kind = MessageKind::kFrame}, {}, kHeader - 1, 0),
      message({.kind = MessageKind::kFrame, .credits = kCredits + 1}, {}, kHeader, 0),
      message({.kind = MessageKind::kFrame, .reserved = 1}, {}, kHeader, 0),
      message({.kind = MessageKind::kFrame, .landed_at = 4096}, {}, kHeader, 1),
      message({.kind = MessageKind::kFrame}, std::vector<Place>(kMaxPlaces + 1), kHeader, 0),
      message({.kind = MessageKind::kMore}, {}, 0, 0),
      message({.kind = MessageKind::kMore, .landed_at = 1}, {}, 0, 8),
      message({.kind = MessageKind::kMore}, {place}, 0, 8),
      message({.kind = MessageKind::kCredit}, {}, 0, 1),
  };
  for (std::size_t i = 0; i < bad.size(); ++i) {
    const auto parsed = parse_message(bad[i]);
    EXPECT_EQ(parsed.ok() ? Code::kOk : parsed.status().code(), Code::kCorrupt) << i;
  }
}

TEST(Message, RandomBytesStayInside) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes(random() % 200);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    if (!bytes.empty()) bytes[0] = static_cast<std::byte>(random() % 5);
    const auto parsed = parse_message(bytes);
    if (!parsed.ok()) continue;
    for (const auto part : {parsed->frame_header, parsed->places, parsed->payload}) {
      if (part.empty()) continue;
      EXPECT_GE(part.data(), bytes.data());
      EXPECT_LE(part.data() + part.size(), bytes.data() + bytes.size());
    }
    for (std::size_t p = 0; p * sizeof(Place) < parsed->places.size(); ++p) (void)parsed->place(p);
  }
}

// ---- parameters ----

std::span<const std::byte> bytes_of(const Parameters& p) {
  return std::as_bytes(std::span(&p, 1));
}

TEST(Parameters, OnlyThoseOfTheSameKindAreTaken) {
  Parameters p;
  p.queue_pairs = 2;
  const Parameters mine = p;
  EXPECT_TRUE(parse_parameters(bytes_of(p), mine).ok());
  EXPECT_EQ(parse_parameters(bytes_of(p), Parameters()).status().to_string(),
            "2 queue pairs in a flow, this host has 1: set `rdma: queue_pairs` to the same number on every host");
  Parameters other = p;
  other.connect_by = ConnectBy::kCm;
  EXPECT_EQ(
      parse_parameters(bytes_of(other), mine).status().to_string(),
      "queue pairs connected by rdma_cm, this host does it by verbs: set `rdma: connect` to the same on every host");
  other = p;
  other.frame_version = 9;
  EXPECT_EQ(
      parse_parameters(bytes_of(other), mine).status().to_string(),
      "frames of version 9 in messages of version 1, this host speaks 1 and 1: install the same tensorlane version "
      "on every host");
  EXPECT_EQ(parse_parameters(bytes_of(other), mine).status().code(), Code::kVersionMismatch);
  for (const auto& spoil : std::vector<void (*)(Parameters&)>{
           [](Parameters& q) { q.path_mtu = 0; }, [](Parameters& q) { q.path_mtu = 6; },
           [](Parameters& q) { q.message_bytes = 1; }, [](Parameters& q) { q.credits = 1; },
           [](Parameters& q) { q.pairs[1].number = 1u << 24; }, [](Parameters& q) { q.pairs[0].first_packet = ~0u; }}) {
    Parameters q = p;
    spoil(q);
    EXPECT_EQ(parse_parameters(bytes_of(q), mine).status().code(), Code::kCorrupt);
  }
  EXPECT_EQ(parse_parameters(bytes_of(p).first(159), mine).status().code(), Code::kCorrupt);
}

// ---- requests of rdma_cm ----

TEST(CmRequests, OnlyOneOfOursIsRead) {
  const CmRequest request{.pair = 17, .proof = cm_proof({1}, 17)};
  std::array<std::byte, 56> padded{};  // as rdma_cm delivers it
  std::memcpy(padded.data(), &request, sizeof request);
  const Result<CmRequest> read = parse_cm_request(padded);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->pair, 17u);
  EXPECT_EQ(read->proof, request.proof);
  EXPECT_EQ(parse_cm_request(std::span(padded).first(39)).status().what(), "request of 39 bytes");
  padded[7] = std::byte{1};
  EXPECT_EQ(parse_cm_request(padded).status().what(), "request that is none of ours");
  padded[7] = std::byte{0};
  padded[0] ^= std::byte{1};
  EXPECT_EQ(parse_cm_request(padded).status().code(), Code::kCorrupt);
}

TEST(CmRequests, AProofIsOfOneHandshakeAndOneQueuePair) {
  const handshake::Mac secret{1, 2, 3}, other{1, 2, 4};
  EXPECT_EQ(cm_proof(secret, 17), cm_proof(secret, 17));
  EXPECT_NE(cm_proof(secret, 17), cm_proof(secret, 18));
  EXPECT_NE(cm_proof(secret, 17), cm_proof(other, 17));
}

// ---- places ----

void put(PlaceTable& table, std::uint32_t grant, const std::vector<Place>& places) {
  const auto bytes = message({.kind = MessageKind::kFrame}, places, kHeader, 0);
  table.put(grant, *parse_message(bytes));
}
constexpr std::uint64_t kPage = kMaxOperation.value;

TEST(PlaceTable, OnePieceIsFoundAtEveryOffsetAndKept) {
  PlaceTable table;
  put(table, 5, {{0x100000, 100 * kPage, 7, 0}});
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{17}, 99 * kPage}) {
    const auto place = table.take(5, offset, kPage);
    ASSERT_TRUE(place) << offset;
    EXPECT_EQ(place->address, 0x100000 + offset);
    EXPECT_EQ(place->key, 7u);
  }
  EXPECT_FALSE(table.take(5, 99 * kPage + 1, kPage)) << "past the end";
  EXPECT_FALSE(table.take(5, ~std::uint64_t{0}, 1));
  EXPECT_FALSE(table.take(6, 0, 1)) << "never given";
}

TEST(PlaceTable, PagesAreFoundOnceInAnyOrder) {
  PlaceTable table;
  put(table, 1, {{0x900000, kPage, 7, 0}, {0x100000, kPage, 7, 0}, {0x500000, 100, 7, 0}});
  EXPECT_EQ(table.take(1, 2 * kPage, 100)->address, 0x500000u);
  EXPECT_EQ(table.take(1, 0, kPage)->address, 0x900000u);
  EXPECT_EQ(table.take(1, kPage, kPage)->address, 0x100000u);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_FALSE(table.take(1, 0, kPage)) << "its bytes have been sent";
  put(table, 1, {{0x900000, kPage, 7, 0}, {0x100000, kPage, 7, 0}});
  EXPECT_FALSE(table.take(1, kPage / 2, kPage)) << "lies in two pages";
}

TEST(PlaceTable, ANewerGenerationReplacesAnOlderOne) {
  PlaceTable table;
  const std::uint32_t old_grant = 3 | 1u << protocol::kGrantIndexBits, new_grant = 3 | 2u << protocol::kGrantIndexBits;
  put(table, old_grant, {{0x1000, 10 * kPage, 1, 0}});
  put(table, new_grant, {{0x2000, 10 * kPage, 2, 0}});
  EXPECT_EQ(table.size(), 1u);
  EXPECT_FALSE(table.take(old_grant, 0, 1));
  EXPECT_EQ(table.take(new_grant, 0, 1)->key, 2u);
}

TEST(PlaceTable, NeverHoldsMoreThanItsBound) {
  PlaceTable table;
  for (std::uint32_t i = 0; i < kMaxKnownPlaces + 1000; ++i) put(table, i, {{1, 10, 1, 0}});
  EXPECT_EQ(table.size(), kMaxKnownPlaces);
}

}  // namespace
}  // namespace tensorlane::rdma
