"""The model, the data and the training of every hospital."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Grayscale, Normalize, ToTensor


class Net(nn.Module):
    """A small convolutional network on grey images of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.fc1 = nn.Linear(8 * 8 * 8, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, 10)``."""
        x = torch.sigmoid(self.conv(x))
        return self.fc2(torch.sigmoid(self.fc1(x.flatten(1))))


pytorch_transforms = Compose([Grayscale(), ToTensor(), Normalize((0.5,), (0.5,))])


def load_data(partition_id: int, data_dir: str, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """Load a hospital's images for training and for testing: one folder a hospital, in it one folder a class."""
    folder = f"{data_dir}/hospital-{partition_id}"
    train = ImageFolder(f"{folder}/train", pytorch_transforms, allow_empty=True)
    test = ImageFolder(f"{folder}/test", pytorch_transforms, allow_empty=True)
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(test, batch_size=batch_size)


def train(net: nn.Module, trainloader: DataLoader, epochs: int, lr: float, device: torch.device) -> float:
    """Train the model on the training set, and return the mean loss."""
    net.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net: nn.Module, testloader: DataLoader, device: torch.device) -> tuple[float, float]:
    """Return loss and accuracy on the test set."""
    net.to(device)
    net.eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images.to(device))
            loss += F.cross_entropy(outputs, labels.to(device)).item()
            correct += (outputs.argmax(1) == labels.to(device)).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
